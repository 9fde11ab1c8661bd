"""The method whose result `tracked` or `cr_mogm` averages: creation from its name, and validation."""

from collections.abc import Sequence

import gradhomog
from gradhomog import OptionError, Pipeline


def inner_pipeline(owner: str, method: str, stages: Sequence[str], advice: str) -> Pipeline:
    """Return the pipeline `method`, of one homogenizer that acts by one of `stages` alone.

    Raises:
        OptionError: it is not such a homogenizer.
    """
    pipe = gradhomog.pipeline(method)
    members = pipe.members
    if len(members) != 1:
        raise OptionError(f"{owner}: `method` must name one homogenizer; got {method!r}. {advice}")
    overrides = members[0].homogenizer.overrides
    others = [s for s in ("attach", "begin", "transform", "rows", "choose") if s not in stages and overrides(s)]
    if others or not any(map(overrides, stages)):
        found = f"{method!r} acts by `{others[0]}`" if others else f"{method!r} does not"
        ways = " or ".join(f"`{stage}`" for stage in stages)
        raise OptionError(f"{owner}: `method` must name a homogenizer that acts by {ways} alone; {found}.")
    return pipe
