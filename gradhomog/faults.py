"""Several errors of one input as one message, so that a user corrects all of them at once."""

from __future__ import annotations

from collections.abc import Iterable


def join_faults(messages: Iterable[object]) -> str:
    """A single message as it is; several, each once, as a list below their number.

    >>> print(join_faults(["`seeds` must be an integer.", "unknown key `colour`."]))
    2 things are wrong:
      - `seeds` must be an integer.
      - unknown key `colour`.
    """
    different = list(dict.fromkeys(str(message) for message in messages))
    if len(different) == 1:
        return different[0]
    items = ["  - " + message.replace("\n", "\n    ") for message in different]
    return "\n".join([f"{len(items)} things are wrong:", *items])
