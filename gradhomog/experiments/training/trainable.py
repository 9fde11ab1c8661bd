"""Protocol of the object that a run trains and tests: a learner with its episodes, or a multi-task network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from gradhomog.errors import ConfigError
from gradhomog.learners.results import Evaluation
from gradhomog.problems import BatchRows
from gradhomog.step.reports import StageReport, StepReport


class Trainable(Protocol):
    """Training step, evaluation and state of a run. A step is a function of its index and the state only.

    Attributes:
        metric: name of the metric of the scores of `validate` and `test`.
        samples_tasks: True if the tasks are a sample of a larger population: their scores then have a confidence
            interval.
        state_selection: `"best"` tests the states with the best validation scores, `"last"` the last state.
    """

    metric: str
    samples_tasks: bool
    state_selection: str

    def parameters(self) -> list[torch.nn.Parameter]: ...

    def step(self, index: int, optimizer: torch.optim.Optimizer, inspect: bool) -> StepReport:
        """Train on batch `index`. Without `inspect`, norms and cosines that need extra computation may be NaN."""

    def probe(self, index: int) -> list[StageReport]:
        """Return the rows of batch `index` after each homogenizer; empty if the reports of all steps include them."""

    def rows(self, index: int) -> BatchRows:
        """Return the rows of measured batch `index` at the present parameters, without changing parameters or buffers.

        Batches of different indices are independent, unlike the batches of one epoch. The caller seeds the global
        generators for each batch, and restores them.
        """

    def validate(self) -> Evaluation:
        """Return the scores that select the state and the candidate of a tuned method; see `held_out` in `metadata`."""

    def test(self, states: Sequence[Mapping[str, Any]]) -> Evaluation:
        """Return the test scores of `states`: the first is the best and already loaded; several form an ensemble."""

    def write_artifacts(self, folder: Path) -> dict[str, Any]:
        """Write the files that figures need, and return further entries for the record of the result. Called last."""

    def metadata(self) -> dict[str, Any]:
        """Return the entries of `Plan.metadata` that apply."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def device(name: str) -> torch.device:
    """Return the device of this name.

    Raises:
        ConfigError: PyTorch cannot use this device on this machine.
    """
    try:
        tensor = torch.zeros(1, device=name)
        tensor.item()  # raises on devices without data, such as meta, which cannot train
        return tensor.device
    except (RuntimeError, AssertionError, NotImplementedError) as cause:
        # The name is unknown, or this machine or this build of PyTorch has no such device.
        reason = str(cause).splitlines()[0]
        raise ConfigError(
            f"`device` must be one that PyTorch can use here, such as cpu; got {name!r}: {reason}"
        ) from cause
