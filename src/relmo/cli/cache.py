"""`relmo cache`: what is kept, and how to be rid of it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from relmo.cli import arguments as arg

if TYPE_CHECKING:
    from relmo.cache import CacheContents, CacheEntry

SHOWN = 20  # entries of a kind
cache = typer.Typer(
    help="""Show what is kept in the cache: stored features, prepared corpora, downloaded models.

    [bold]Examples[/bold]

      relmo cache

      relmo cache clear --features --older-than 30

      relmo cache clear 3f9a2c
    """,
    invoke_without_command=True,
)


@cache.callback()
def show(context: typer.Context, as_json: arg.Json = False) -> None:
    """Show what is kept, unless a command follows."""
    if context.invoked_subcommand is None:
        from relmo.cache import list_cache

        contents = list_cache()
        typer.echo(json.dumps(contents.as_dict()) if as_json else _table(contents))


@cache.command()
def clear(
    names: Annotated[
        list[str] | None,
        Argument(
            metavar="NAME", help="Of what to remove, or four or more of its first characters."
        ),
    ] = None,
    features: Annotated[bool, Option("--features", help="Stored features.")] = False,
    corpora: Annotated[bool, Option("--corpora", help="Prepared corpora.")] = False,
    models: Annotated[bool, Option("--models", help="Downloaded models.")] = False,
    older_than: Annotated[
        float | None, Option(metavar="DAYS", min=0, help="Only what was not used for so long.")
    ] = None,
    as_json: arg.Json = False,
) -> None:
    """Remove features and corpora, or what is named. What is in use stays.

    Downloaded models are removed only with --models.

    [bold]Examples[/bold]

      relmo cache clear

      relmo cache clear --corpora --older-than 7

      relmo cache clear --models small
    """
    from relmo.cache import COMPUTED, clear_cache
    from relmo.features.datasets import show_bytes

    flags = {"features": features, "corpora": corpora, "models": models}
    kinds = [kind for kind, wanted in flags.items() if wanted] or COMPUTED
    cleared = clear_cache(names or (), kinds=kinds, older_than_days=older_than)
    if as_json:
        typer.echo(json.dumps(cleared.as_dict()))
        return
    for entry in cleared.in_use:
        typer.echo(f"In use, not removed: {_line(entry)}", err=True)
    n = len(cleared.removed)
    typer.echo(f"Removed {n} {'entry' if n == 1 else 'entries'}: {show_bytes(cleared.freed_bytes)}")


def _table(contents: CacheContents) -> str:
    from relmo.cache import KINDS
    from relmo.features.datasets import show_bytes

    lines = []
    for kind in KINDS:
        entries = [entry for entry in contents.entries if entry.kind == kind]
        total = show_bytes(sum(entry.n_bytes for entry in entries))
        bound = f" of at most {show_bytes(contents.max_feature_bytes)}" if kind == KINDS[0] else ""
        lines += [f"{kind}: {total}{bound}", *(f"  {_line(entry)}" for entry in entries[:SHOWN])]
        if len(entries) > SHOWN:
            lines.append(f"  and {len(entries) - SHOWN} more, used before these")
    return "\n".join([*lines, f"total: {show_bytes(contents.n_bytes)} in {contents.directory}"])


def _line(entry: CacheEntry) -> str:
    from relmo.features.datasets import show_bytes

    used = datetime.fromtimestamp(entry.last_used).strftime("%Y-%m-%d %H:%M")
    state = ", in use" if entry.in_use else "" if entry.is_complete else ", not complete"
    size = show_bytes(entry.n_bytes)
    return f"{entry.name[:16]:<16} {size:>10}  last used {used}  {entry.description}{state}"
