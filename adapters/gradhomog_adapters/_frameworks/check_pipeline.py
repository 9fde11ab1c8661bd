"""Refuse pipelines that need more than losses and gradients of parameters."""

from __future__ import annotations

from typing import Any

from gradhomog import OptionError, Pipeline

CHOOSE = "Choose another homogenizer: `gradhomog list`."


def check_pipeline(pipe: Pipeline, framework: str) -> None:
    """Raise unless losses and rows are sufficient: the framework passes on no features and no residuals.

    Raises:
        OptionError: the message names the homogenizer.
    """
    require_pipeline(pipe)
    required = "`pipe` must require losses and gradients of parameters only, but"
    if found := [
        member.selector
        for member in pipe.members
        if member.homogenizer.overrides("transform") or _declares(member, "features")
    ]:
        raise OptionError(
            f"{required} {' and '.join(found)} reads features, which {framework} does not compute. {CHOOSE}"
        )
    if found := [member.selector for member in pipe.members if _declares(member, "kernel_traces")]:
        raise OptionError(
            f"{required} {' and '.join(found)} reads residuals, which {framework} does not pass on. {CHOOSE}"
        )


def require_pipeline(pipe: Pipeline) -> None:
    """Raise unless `pipe` is a pipeline."""
    if not isinstance(pipe, Pipeline):
        raise OptionError(
            f"`pipe` must be a pipeline, created once before training, as gradhomog.pipeline('pcgrad'); got {pipe!r}."
        )


def _declares(member: Any, name: str) -> bool:
    return member.declares_needs and name in member.needs
