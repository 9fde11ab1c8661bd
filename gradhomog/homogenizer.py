"""The base class of all homogenizers: five stages, of which a method overrides those it needs."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from gradhomog.errors import ConfigError
from gradhomog.jacobian import Jacobian
from gradhomog.step import StageResult, Step
from gradhomog.task_key import TaskKey
from gradhomog.written_for_0_1 import check_stages

Part = Literal["support", "query"]
"""The inputs of a task that the encoder runs on."""


class Removable(Protocol):
    """A handle from `attach`: of a PyTorch hook, or anything else with `remove()`."""

    def remove(self) -> None: ...


class Homogenizer:
    """Acts at one or more of five stages between the tasks and the step of the shared parameters.

    A subclass overrides the stages it acts at; the pipeline calls only those, in the order in which the user named the
    homogenizers. It acts on the rows by `mix` or by `rows`, not by both. Identical rows g must lead to the step g;
    where the paper's scale differs, `paper_scale` gives the factor.

    Attributes:
        state_names: names of the attributes that are the state: numbers, texts, tensors, dicts and lists of these, or
            another Homogenizer. `state_dict` saves them; loaded into a new object, training continues bit for bit. Only
            the host assigns them, from the result of `update`: no stage changes the object.
        seed: of `step.generator`; a stochastic method has an option of this name.
        needs: where options decide which statistics are read, the subset of `HomogenizerSpec.needs` that is read with
            these options; None for all of them.
    """

    state_names: tuple[str, ...] = ()
    seed: int = 0
    needs: Set[str] | None = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        check_stages(cls)

    def attach(self, encoder: nn.Module) -> Iterable[Removable]:
        """Change what the encoder computes during training; return handles whose `remove()` undoes it."""
        raise NotImplementedError

    def begin(self, key: TaskKey, part: Part, generator: torch.Generator) -> None:
        """Announce the inputs that the encoder runs on until the next call, for hooks set by `attach`.

        `generator` is a function of (seed, step number, slot, part). Draw from it once and keep what was drawn until
        the next step, so that second-order gradients are those of one function.
        """
        raise NotImplementedError

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        """Map query features `[tasks, queries, features]` to features of the same shape, differentiably.

        `keys` identifies the tasks: a learner may pass one task at a time.
        """
        raise NotImplementedError

    def mix(self, step: Step) -> Tensor | StageResult:
        """Return weights `[tasks]` or a mixing matrix C `[tasks, tasks]`: row i becomes Σ_j C_ij · row_j."""
        raise NotImplementedError

    def rows(self, step: Step) -> Jacobian | StageResult:
        """Return a Jacobian like `step.jacobian`, made by its methods `map`, `replace` or `repeat`."""
        raise NotImplementedError

    def update(self, step: Step) -> Mapping[str, Any]:
        """Return new values of some of `state_names`, from the detached step that `mix` or `rows` received.

        Called last, without gradients, after the direction is known to be finite. The host assigns the values after all
        homogenizers have returned theirs. The old values must not be written to; numbers must be finite.
        """
        raise NotImplementedError

    def paper_scale(self, step: Step) -> Tensor | float:
        """The factor from this method's step to that of the paper. Overriding it gives the plugin an option `scale`."""
        raise NotImplementedError

    def measured(self, step: Step) -> Mapping[str, float | Sequence[float]]:
        """Numbers about this step by name, one or one per task, for records and figures; before `update`."""
        return {}

    def maps(self, encoder: nn.Module, inputs: Tensor) -> Mapping[str, Tensor]:
        """The effect at each position of inputs `[n, *input]`, `[n, height, width]` by name, for figures.

        Leaves the encoder and all state as they were.
        """
        return {}

    @classmethod
    def overrides(cls, stage: str) -> bool:
        """Whether this class acts at a stage."""
        return getattr(cls, stage) is not getattr(Homogenizer, stage)

    def state_dict(self) -> dict[str, Any]:
        """A copy of the state, of plain types and tensors, fit for `torch.save` with `weights_only=True`."""
        return {name: _copy(getattr(self, name)) for name in self.state_names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the state by a saved one.

        Raises:
            ConfigError: the saved names are not `state_names`.
        """
        if set(state) != set(self.state_names):
            raise ConfigError(
                f"the state of {type(self).__name__} must hold {sorted(self.state_names)}; found {sorted(state)}. "
                "It was saved by another homogenizer or version."
            )
        for name, value in state.items():
            current = getattr(self, name)
            if isinstance(current, Homogenizer):
                current.load_state_dict(value)
            else:
                setattr(self, name, _copy(value))

    def assign_state(self, values: Mapping[str, Any]) -> None:
        """Assign what `update` returned. Called by the host."""
        for name, value in values.items():
            current = getattr(self, name)
            if isinstance(current, Homogenizer):
                current.assign_state(value)
            else:
                setattr(self, name, value)


def _copy(value: Any) -> Any:
    if isinstance(value, Homogenizer):
        return value.state_dict()
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return copy.deepcopy(value)
