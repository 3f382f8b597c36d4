"""Write the tables of docs/results anew, from the results.json files beside them.

A table stands between two comments, the first of which names its file:

    <!-- results: data/parts-of-speech.json -->
    <!-- end of results -->
"""

from __future__ import annotations

import re
from pathlib import Path

from relmo.results import read_results, render_table

PAGES = Path(__file__).parents[1] / "docs" / "results"
BLOCK = re.compile(r"(<!-- results: (\S+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def filled(page: Path) -> str:
    """The text of a page with its tables rendered from their files."""

    def table(match: re.Match[str]) -> str:
        return (
            match[1] + "\n" + render_table(read_results(page.parent / match[2])) + "\n" + match[3]
        )

    return BLOCK.sub(table, page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for page in sorted(PAGES.glob("*.md")):
        text = filled(page)
        if text != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            print(f"Wrote {page}")
