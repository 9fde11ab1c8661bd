"""The method that `tracked` applies to averages: creation from its name, and validation."""

from __future__ import annotations

import gradhomog
from gradhomog import OptionError, Pipeline

UNKNOWN = {"features": "features", "kernel_traces": "traces of kernels"}
"""Statistics that are known for the tasks of the step only."""


def inner_pipeline(method: str) -> Pipeline:
    """Return the pipeline of the one homogenizer that `method` names.

    Raises:
        OptionError: it is not one homogenizer that acts by `mix` or `rows` alone, or it reads an unknown statistic.
    """
    pipe = gradhomog.pipeline(method)
    members = pipe.members
    if len(members) != 1:
        raise OptionError(
            f"tracked: `method` must name one homogenizer; got {method!r}. Methods that act in the network are put "
            "before it: 'isi + tracked(method=\"upgrad\")'."
        )
    inner = members[0].homogenizer
    early = [stage for stage in ("attach", "begin", "transform", "choose") if inner.overrides(stage)]
    if early or members[0].stage is None:
        found = f"{method!r} acts by `{early[0]}`" if early else f"{method!r} does not"
        raise OptionError(f"tracked: `method` must name a homogenizer that acts by `mix` or `rows` alone; {found}.")
    if unknown := [name for need, name in UNKNOWN.items() if need in members[0].needs]:
        raise OptionError(
            f"tracked: {method!r} reads {unknown[0]}, which are known for the tasks of the step only. Use a `method` "
            "that reads rows, inner products, norms or losses."
        )
    return pipe
