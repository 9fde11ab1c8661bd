"""Validate the pipeline of a framework before training."""

from __future__ import annotations

from gradhomog import OptionError, Pipeline


def check_pipeline(pipe: Pipeline, host: str) -> None:
    """Raise unless the pipeline needs losses and rows only: the framework computes no features shared by all losses.

    Raises:
        OptionError: the message names the homogenizer.
    """
    if not isinstance(pipe, Pipeline):
        raise OptionError(
            f"`pipe` must be a pipeline, created once before training, as gradhomog.pipeline('pcgrad'); got {pipe!r}."
        )
    reading = [
        member.selector
        for member in pipe.members
        if member.homogenizer.overrides("transform") or (member.declares_needs and "features" in member.needs)
    ]
    if reading:
        raise OptionError(
            f"`pipe` must require losses and gradients of parameters only, but {' and '.join(reading)} reads features, "
            f"which {host} does not compute. Choose another homogenizer: `gradhomog list`."
        )
