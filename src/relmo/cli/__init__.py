"""The `relmo` command: one file per verb. A verb parses, calls the library and prints.

Data goes to stdout, messages to stderr. A user's mistake ends with a message and exit code 2.
Nothing here imports torch until a verb runs, so that `--help` is fast.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.main import get_command

from relmo import __version__
from relmo.cli.arguments import refuse_old_prose
from relmo.cli.cache import cache
from relmo.cli.convert import convert
from relmo.cli.demo import demo
from relmo.cli.embed import embed
from relmo.cli.ending import leave
from relmo.cli.index import index
from relmo.cli.info import info
from relmo.cli.models import models
from relmo.cli.neighbours import neighbours
from relmo.cli.perplexity import perplexity
from relmo.cli.pretrain import pretrain
from relmo.cli.probe import probe
from relmo.cli.score import score
from relmo.cli.senses import senses
from relmo.cli.substitutes import substitutes
from relmo.errors import RelmoError, RelmoWarning

app = typer.Typer(
    name="relmo",
    help="ELMo: pre-train, load, embed and explore contextual word vectors.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
explore = (neighbours, senses, perplexity, score, substitutes)
for verb in (pretrain, embed, *explore, info, convert, models, demo):
    app.command()(verb)
for name, group in {"index": index, "probe": probe, "cache": cache}.items():
    app.add_typer(group, name=name)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"relmo {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None: ...


def _find_flags(arguments: Sequence[str], settings: Sequence[str]) -> list[str]:
    """The options of the verb on the command line that set these parameters, as they are typed."""
    command: Any = get_command(app)
    for argument in arguments:
        if not hasattr(command, "commands") or argument not in command.commands:
            break
        command = command.commands[argument]
    options = {p.name: max(p.opts, key=len) for p in command.params if p.opts[0].startswith("-")}
    return [options[name] for name in settings if name in options]


def main() -> None:
    """Run the command line."""
    show = warnings.showwarning
    warnings.showwarning = lambda message, category, *rest: (
        typer.echo(f"Warning: {message}", err=True)
        if issubclass(category, RelmoWarning)
        else show(message, category, *rest)
    )
    try:
        refuse_old_prose(sys.argv[1:])
        app()
    except RelmoError as error:
        flags = _find_flags(sys.argv[1:], error.settings)
        typer.echo(f"Error: {error}" + f" Options: {', '.join(flags)}." * bool(flags), err=True)
        leave(int(getattr(error, "exit_code", 2)))
    except SystemExit as end:
        leave(end.code)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
