"""Write docs/reference/cli.md from the commands themselves, so that the two cannot differ.

Only the commands' own texts are used, never a rendered help page: the result is the same on every
machine, whatever its terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.text import Text
from typer.main import get_command

from relmo.cli import app

TARGET = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
INTRODUCTION = """\
<!-- Written by scripts/cli_reference.py. Change the help texts in src/relmo/cli instead. -->
# Command line

{help}

Data goes to standard output, messages and progress to standard error. A mistake in what was given
ends with a message and exit code 2, and nothing is written. `relmo VERB --help` shows the same as
this page.
"""


def render() -> str:
    """The page, as Markdown."""
    command = get_command(app)
    introduction = INTRODUCTION.format(help=_plain(command.help))
    # Typer's own options for shell completion take another form on some machines.
    ours = [p for p in command.params if not p.name.endswith("_completion")]
    table = "\n".join([*_table(ours), ""])
    return "\n".join([introduction, table, *_sections(command, "relmo")])


def _sections(group: Any, name: str) -> Iterator[str]:
    """One section per verb, groups of verbs included."""
    for verb, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield _section(command, f"{name} {verb}")
            yield from _sections(command, f"{name} {verb}")
        else:
            yield _section(command, f"{name} {verb}")


def _section(command: Any, name: str) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = [name, "[OPTIONS]", *map(_argument_usage, arguments)]
    lines = [f"## {name}", "", "```sh", " ".join(usage), "```", "", *_help(command.help)]
    return "\n".join([*lines, *_table(command.params), ""])


def _table(parameters: list[Any]) -> Iterator[str]:
    yield from ("| | |", "|---|---|")
    for parameter in parameters:
        if parameter.hidden:
            continue
        text = _plain(parameter.help)
        if parameter.required:
            text += " Required."
        elif (default := _default(parameter)) is not None:
            text += f" Default: `{default}`."
        text = text.replace("|", r"\|")
        yield f"| {_spelling(parameter)} | {text} |"
    yield "| `-h`, `--help` | Show the help and exit. |"


def _default(parameter: Any) -> Any:
    """What an option is unless it is given; of two flags, the one that need not be given."""
    if parameter.param_type_name == "option" and parameter.secondary_opts:
        flags = {True: parameter.opts, False: parameter.secondary_opts}
        return max(flags.get(parameter.default, [None]), key=str)
    return None if parameter.default is False else parameter.default


def _argument_usage(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    name += "..." if parameter.nargs != 1 else ""
    return name if parameter.required else f"[{name}]"


def _spelling(parameter: Any) -> str:
    """The option as it is typed, such as `-m`, `--model MODEL`."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    spellings = sorted([*parameter.opts, *parameter.secondary_opts], key=len)
    if not parameter.is_flag:
        spellings[-1] += f" {parameter.metavar or spellings[-1].strip('-').upper()}"
    return ", ".join(f"`{spelling}`" for spelling in spellings)


def _help(text: str) -> Iterator[str]:
    """Paragraphs of a help text; indented ones are examples, and become one block of code."""
    examples: list[str] = []
    for paragraph in _plain(text).split("\n\n"):
        if paragraph.startswith("  "):
            examples.append(paragraph.strip())
        elif paragraph != "Examples":
            yield from (paragraph, "")
    yield from ("```sh", *examples, "```", "")


def _plain(text: str | None) -> str:
    """The text as a terminal shows it, without colours."""
    return Text.from_markup(text or "").plain


if __name__ == "__main__":
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(render(), encoding="utf-8", newline="\n")
    print(f"Wrote {TARGET}")
