"""What somebody may have meant who named something that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(given: object, known: Iterable[str], shown: str = "'{}'") -> str:
    """A sentence with the known name that is nearest, after a space; nothing if none is near.

    >>> did_you_mean("Landscpe", ["landscape", "regression"])
    " Did you mean 'landscape'?"
    """
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(given).lower(), by_lower, n=1)
    return f" Did you mean {shown.format(by_lower[near[0]])}?" if near else ""
