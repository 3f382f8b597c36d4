"""Search an index and print the nearest occurrences, or the recall of the search."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer


def show(
    text: str,
    model: str,
    at: Path,
    k: int,
    options: Path | None,
    as_json: bool,
    exact: bool = False,
) -> None:
    """Search the index in directory `at` for the marked word of a text, and print the hits."""
    from relmo.inference.model import load
    from relmo.text.marks import parse_marked
    from relmo.vectors.index import VectorIndex
    from relmo.vectors.neighbours import nearest_occurrences

    index = VectorIndex(at)
    loaded = load(model, options=options, tokenizer=str(index.about.get("tokenizer")))
    marked = parse_marked(text, loaded.tokenize)
    hits = nearest_occurrences(index, loaded, marked, k, exact=exact)
    if as_json:
        typer.echo(json.dumps([asdict(hit) for hit in hits], ensure_ascii=False))
        return
    for hit in hits:
        shown = " ".join(f"[{t}]" if i == hit.place else t for i, t in enumerate(hit.tokens))
        typer.echo(f"{hit.score:.3f}  {shown}")


def show_recall(at: Path, k: int, n_queries: int, as_json: bool) -> None:
    """Print the recall of approximate search."""
    from relmo.vectors.index import VectorIndex

    share = VectorIndex(at).recall(k, n_queries)
    found = {"recall": share, "k": k, "queries": n_queries}
    typer.echo(json.dumps(found) if as_json else f"recall@{k} {share:.4f}")
