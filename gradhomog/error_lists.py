"""Combine all errors of one input into one message, so that a user can correct them at once."""

from __future__ import annotations

from collections.abc import Iterable


def join_errors(messages: Iterable[object]) -> str:
    """Return a single message unchanged; several messages become a list without duplicates, headed by their number.

    >>> print(join_errors(["`seeds` must be an integer.", "unknown key `colour`."]))
    2 errors:
      - `seeds` must be an integer.
      - unknown key `colour`.
    """
    different = list(dict.fromkeys(str(message) for message in messages))
    if len(different) == 1:
        return different[0]
    items = ["  - " + message.replace("\n", "\n    ") for message in different]
    return "\n".join([f"{len(items)} errors:", *items])
