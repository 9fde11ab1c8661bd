"""Which homogenizers a kernel times: those that were asked for, or of its own list those that are there."""

from __future__ import annotations

from collections.abc import Sequence

import gradhomog
from gradhomog.errors import PluginError


def loadable(texts: Sequence[str], otherwise: Sequence[str]) -> tuple[list[str], list[str]]:
    """The texts, without any those of `otherwise` that load, and a line about the rest.

    Raises:
        GradhomogError: one of `texts` names nothing.
    """
    if texts:
        for text in texts:
            gradhomog.pipeline(text)
        return list(dict.fromkeys(texts)), []
    found, lost = [], []
    for text in otherwise:
        try:
            gradhomog.pipeline(text)
        except PluginError:
            lost.append(text)
        else:
            found.append(text)
    why = "`gradhomog show NAME` tells why"
    return found, [f"Left out, as they do not load: {', '.join(lost)}; {why}."] if lost else []
