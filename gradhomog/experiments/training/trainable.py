"""What a run trains and scores, as `training` sees it: a learner with its episodes, or a network of several tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from gradhomog.errors import ConfigError
from gradhomog.experiments.analysis.metrics import Metric
from gradhomog.host.member import Member
from gradhomog.reports import Evaluation, StageReport, StepReport


class Trainable(Protocol):
    """All that a run changes, and what it is judged by. Every step is a function of its number and of the state.

    Attributes:
        metric: of the scores that `validate` and `test` give.
        members: the homogenizers, for their time.
        sampled: whether tasks are a sample of many, so that scores have an interval over them.
        keeps: which states are tested: the best by validation, or the last one.
    """

    metric: Metric
    sampled: bool
    keeps: str

    @property
    def members(self) -> Sequence[Member]: ...

    def parameters(self) -> list[torch.nn.Parameter]: ...

    def step(self, index: int, outer: torch.optim.Optimizer, inspect: bool) -> StepReport:
        """Train on batch `index`. Norms and cosines may cost what training does not: NaN will do without `inspect`."""

    def probe(self, index: int) -> list[StageReport]:
        """What the homogenizers make of the rows of batch `index`; empty where every step tells it anyway."""

    def validate(self) -> Evaluation:
        """Scores that decide which state, and which candidate of a tuned method, is taken; see `about`."""

    def test(self, states: Sequence[Mapping[str, Any]]) -> Evaluation:
        """Scores of the best of `states`, which is the first and has been loaded; several are tested together."""

    def leave(self, folder: Path) -> dict[str, Any]:
        """Called last: write what figures need; returns what else belongs into the record of the result."""

    def about(self) -> dict[str, Any]:
        """What a report says of it beside the configuration: `tasks` and `notes`, of a multi-task problem; and
        `held_out`, false if `validate` and `test` look at the same."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def device(name: str) -> torch.device:
    """A device by name.

    Raises:
        ConfigError: PyTorch cannot use it here.
    """
    try:
        found = torch.zeros(1, device=name)
        found.item()  # a device without values, such as meta, cannot train
        return found.device
    except (RuntimeError, AssertionError, NotImplementedError) as cause:
        # An unknown name, or a device that this machine or this build of PyTorch lacks.
        reason = str(cause).splitlines()[0]
        raise ConfigError(
            f"`device` must be one that PyTorch can use here, such as cpu; got {name!r}: {reason}"
        ) from cause
