"""`relmo score`: how probable each token and each sentence is."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from relmo.cli import arguments as arg
from relmo.cli.perplexity import Text, score_lines

if TYPE_CHECKING:
    from relmo.score import ScoredSentence


def score(
    text: Text,
    model: arg.Model,
    tokenizer: arg.Tokenizer = None,
    encoding: arg.Encoding = "utf-8",
    errors: arg.Errors = "strict",
    options: arg.Options = None,
    threads: arg.Threads = None,
    as_json: arg.Json = False,
) -> None:
    """Tell the log-probability of every token and sentence, left to right and right to left.

    A sentence's end is predicted left to right, its beginning right to left. Tokens outside the
    vocabulary are scored as <UNK>, and marked. A tab-separated table, or a JSON object a line.

    [bold]Examples[/bold]

      relmo score sentences.txt -m run/model

      echo "The cat sat ." | relmo score - -m run/model --json
    """
    arg.use_threads(threads)
    show = _as_json if as_json else _as_table
    sentences = score_lines(text, model, tokenizer, encoding, errors, options)
    for line, sentence in enumerate(sentences, start=1):
        typer.echo(show(line, sentence))


def _as_json(line: int, sentence: ScoredSentence) -> str:
    from relmo.score import summarize

    perplexity = asdict(summarize([sentence])) if sentence.tokens else {}
    ways = ("forward", "backward")
    facts = {
        "line": line,
        "tokens": sentence.tokens,
        "forward": sentence.forward.tolist(),
        "backward": sentence.backward.tolist(),
        "unknown": sentence.unknown.tolist(),
        "log_probability": dict(zip(ways, sentence.log_probability, strict=True)),
        "perplexity": {way: perplexity.get(way) for way in (*ways, "average")},
    }
    return json.dumps(facts, ensure_ascii=False)


def _as_table(line: int, sentence: ScoredSentence) -> str:
    from relmo.score import summarize

    rows = [f"line {line}\tforward\tbackward"]
    columns = (sentence.tokens, sentence.forward, sentence.backward, sentence.unknown)
    for token, forward, backward, unknown in zip(*columns, strict=False):
        rows.append(f"{token}\t{forward:.4f}\t{backward:.4f}" + "\tunknown" * bool(unknown))
    if sentence.tokens:
        found, (forward, backward) = summarize([sentence]), sentence.log_probability
        rows += [
            f"</S>\t{sentence.forward[-1]:.4f}",
            f"<S>\t\t{sentence.backward[-1]:.4f}",
            f"sum\t{forward:.4f}\t{backward:.4f}",
            f"perplexity\t{found.forward:.2f}\t{found.backward:.2f}",
        ]
    return "\n".join([*rows, ""])
