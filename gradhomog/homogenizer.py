"""The base class of all homogenizers: five stages, of which a method overrides those it needs."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from gradhomog.errors import ConfigError
from gradhomog.evidence import Evidence, TaskKey
from gradhomog.rows import Rows

Part = Literal["support", "query"]
"""Which inputs of a task the encoder is run on."""


class Removable(Protocol):
    """What `attach` returns one or more of: a PyTorch hook handle, or anything else with `remove()`."""

    def remove(self) -> None: ...


class Homogenizer:
    """Acts at one or more of five places on the way from tasks to rows to the step.

    A subclass overrides the stages it acts at and nothing else; the pipeline calls only those, in the order in which
    the user named the homogenizers. The step that the host takes is the mean of the homogenized rows.

    What is carried from step to step stands in attributes whose names are listed in `carried`: tensors, numbers, texts,
    `torch.Generator`s, and dicts or lists of these. `state_dict` saves them all, and after `load_state_dict` into a
    fresh object everything goes on bit for bit the same.

    Where options decide which statistics are read, `needs` is set in the constructor to those among the plugin's own
    `HomogenizerSpec.needs` that are: the host then spares the rest. None stands for all of them.
    """

    carried: tuple[str, ...] = ()
    needs: Set[str] | None = None

    def attach(self, encoder: nn.Module) -> Iterable[Removable]:
        """Change what the encoder computes while training; return handles whose `remove()` undoes it."""
        raise NotImplementedError

    def begin(self, key: TaskKey, part: Part) -> None:
        """The companion of `attach`: the learner turns to a task's support or query inputs.

        Until the next call every run of the encoder is on these inputs. What is random is drawn once here and then
        held, so that second-order gradients are those of one function.
        """
        raise NotImplementedError

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        """Map query features `[tasks, queries, features]` to features of the same shape, differentiably.

        `keys` says which tasks these are: a learner may hand over one task at a time.
        """
        raise NotImplementedError

    def mix(self, evidence: Evidence) -> Tensor:
        """Return weights `[tasks]` or a mixing matrix C `[tasks, tasks]`: row i becomes Σ_j C_ij · row_j."""
        raise NotImplementedError

    def rows(self, jacobian: Rows) -> Rows:
        """Return rows of the same structure, shape and dtype; the rows given are not to be written to.

        Where all of them are one vector d, return `d.expand(tasks, ...)`: it is then read once, and taken for the
        direction as it is, so do not keep it.
        """
        raise NotImplementedError

    def update(self, evidence: Evidence) -> None:
        """Learn from what this step showed (detached): the homogenizer's own, slower step."""
        raise NotImplementedError

    def measured(self) -> Mapping[str, float | Sequence[float]]:
        """Numbers about the last step by name, for records and figures: one, or one per task. Not a stage."""
        return {}

    def maps(self, encoder: nn.Module, inputs: Tensor) -> Mapping[str, Tensor]:
        """What it does at each place of inputs `[n, *input]`, `[n, height, width]` by name, for figures. Not a stage.

        Leaves the encoder and all state, generators included, as they were.
        """
        return {}

    def overrides(self, stage: str) -> bool:
        """Whether this homogenizer acts at a stage."""
        return getattr(type(self), stage) is not getattr(Homogenizer, stage)

    def state_dict(self) -> dict[str, Any]:
        """A copy of all that is carried, of plain types and tensors, fit for `torch.save` with `weights_only=True`."""
        return {name: _copy(getattr(self, name)) for name in self.carried}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state.

        Raises:
            ConfigError: the names saved are not the names carried.
        """
        if set(state) != set(self.carried):
            raise ConfigError(
                f"the state of {type(self).__name__} must hold {sorted(self.carried)}; found {sorted(state)}. "
                "It was saved by another homogenizer or version."
            )
        for name, value in state.items():
            current = getattr(self, name)
            if isinstance(current, torch.Generator):
                current.set_state(value.cpu())  # a checkpoint may have been read onto another device
            else:
                setattr(self, name, _copy(value))


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return copy.deepcopy(value)
