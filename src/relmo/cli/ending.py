"""Exit of the command."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def leave(code: str | int | None) -> NoReturn:
    """Exit. One of several processes exits at once, as gloo's threads may abort a normal exit."""
    if "RANK" in os.environ and not isinstance(code, str):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(code)
