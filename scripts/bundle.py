"""Put the model of a run into the package, in float16, with a card that tells how it was made.

One of the same name that is there already is replaced.

python scripts/bundle.py RUN NAME --text "..." --licence "..." --command "..."
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

from relmo.formats import native, read_model
from relmo.formats.bundled import FOLDER


def main() -> None:
    """Read the arguments, write the model, and tell how large it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="what relmo pretrain wrote")
    parser.add_argument("name", help="what to load it by")
    for fact in ("text", "licence"):
        parser.add_argument(f"--{fact}", required=True)
    parser.add_argument("--command", required=True, action="append", help="one for each run")
    given = parser.parse_args()
    contents = read_model(given.run / "model")
    commands = ", then ".join(f"`{command}`" for command in given.command)
    facts = {"text": given.text, "licence": given.licence, "command": commands}
    target = FOLDER / given.name
    shutil.rmtree(target, ignore_errors=True)
    native.write(replace(contents, facts={**contents.facts, **facts}), target, "float16")
    size = sum(file.stat().st_size for file in target.iterdir())
    print(f"{target}: {size / 1e6:.2f} MB, {contents.n_parameters:,} parameters (no softmax)")


if __name__ == "__main__":
    main()
