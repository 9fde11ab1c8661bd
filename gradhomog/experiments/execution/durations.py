"""Times in words."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(7.4), duration(75), duration(5400)
    ('7 s', '75 s', '90 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
