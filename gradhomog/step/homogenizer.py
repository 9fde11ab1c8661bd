"""The base class of all homogenizers: stages, of which a method overrides those it needs."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from gradhomog.registry.options import ValidatedConstructor, check_state
from gradhomog.rows import Jacobian
from gradhomog.step.step import StageResult, Step, TaskKey, map_nested

Part = Literal["support", "query"]
"""The inputs of a task that the encoder runs on."""


class Removable(Protocol):
    """A handle returned by `attach`: the handle of a PyTorch hook, or any object with a method `remove()`."""

    def remove(self) -> None: ...


class Homogenizer(ValidatedConstructor):
    """Changes the rows of a step at one or more stages.

    A subclass overrides the stages at which it acts; the pipeline calls only those, in the order of its homogenizers. A
    homogenizer acts on the rows by `mix` or by `rows`, not by both. For identical rows g the direction must be g; if
    the scale of the paper differs, `paper_scale` returns the factor.

    Attributes:
        state_names: names of the attributes that form the state: numbers, strings, tensors, dicts and lists of these,
            or another Homogenizer. `state_dict` saves them; after loading into a new object, training continues with
            identical bits. Only the pipeline assigns them, from the result of `update`: no stage changes the object. A
            dict from names to types; a saved state of other types is not loaded. Of a tuple of names, only the type of
            the attribute is compared.
        seed: seed of `step.generator`; a stochastic method has an option of this name.
        needs: if options decide which statistics are read, the subset of `HomogenizerSpec.needs` that is read with
            these options; None for all of them.
        weights_losses: True if the weights from `mix` are those of the losses: later homogenizers then read the
            weighted losses, as if the caller had passed them.
        reads_rows_in_every_step: False if `mix` does not read norms and inner products in every step, and `update` and
            `measured` never do. Then steps in which no homogenizer reads them take one backward pass.
        weights_absent: True if the weights from `mix` are relative to those of `step.absent_names` too, from the state.
            The pipeline does this for methods that read nothing but losses.
    """

    state_names: Mapping[str, Any] | tuple[str, ...] = ()
    seed: int = 0
    weights_losses: bool = False
    reads_rows_in_every_step: bool = True
    weights_absent: bool = False
    needs: Set[str] | None = None

    def __init__(self) -> None:  # without it a subclass without options would accept any
        super().__init__()

    def attach(self, encoder: nn.Module) -> Iterable[Removable]:
        """Change the computation of the encoder during training; return handles whose `remove()` reverts it."""
        raise NotImplementedError

    def begin(self, key: TaskKey, part: Part, generator: torch.Generator) -> None:
        """Called before the encoder runs on the support or query inputs of a task, for hooks that `attach` registered.

        `key` identifies the task, `part` is `"support"` or `"query"`; both are valid until the next call.

        `generator` is a function of (seed, step number, slot, part). Draw from it once and keep the random numbers
        until the next step, so that second-order gradients are those of one function.
        """
        raise NotImplementedError

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        """Map query features `[tasks, queries, features]` to features of the same shape, differentiably.

        `keys` identifies the tasks; a learner may pass one task at a time.
        """
        raise NotImplementedError

    def choose(self, keys: Sequence[TaskKey]) -> Sequence[int]:
        """Return the positions of the tasks whose rows the next step needs; called before a loss is differentiated.

        For methods that keep rows from step to step. Must be a function of the state and of `keys`, the tasks that can
        be computed. The step may contain other tasks nevertheless.
        """
        raise NotImplementedError

    def mix(self, step: Step) -> Tensor | StageResult:
        """Return weights `[tasks]` or a mixing matrix C `[tasks, tasks]`: row i becomes Σ_j C_ij · row_j."""
        raise NotImplementedError

    def rows(self, step: Step) -> Jacobian | StageResult:
        """Return a Jacobian of the same shapes as `step.jacobian`, created by its `map`, `replace` or `repeat`."""
        raise NotImplementedError

    def update(self, step: Step) -> Mapping[str, Any]:
        """Return new values of some of `state_names`, computed from the detached step that `mix` or `rows` received.

        Called last, without gradients, once the direction is verified to be finite. The pipeline assigns the values
        after every homogenizer has returned. Do not modify the old values in place; numbers must be finite.
        """
        raise NotImplementedError

    def paper_scale(self, step: Step) -> Tensor | float:
        """Return the ratio of the paper's step to this method's step. Overriding it adds the option `scale`."""
        raise NotImplementedError

    def measured(self, step: Step) -> Mapping[str, float | Sequence[float]]:
        """Return numbers about this step by name, one or one per task, for records and figures; precedes `update`."""
        return {}

    def maps(self, encoder: nn.Module, inputs: Tensor) -> Mapping[str, Tensor]:
        """Return the effect at each position of inputs `[n, *input]`, `[n, height, width]` by name, for figures.

        Must not change the encoder or any state.
        """
        return {}

    @classmethod
    def overrides(cls, stage: str) -> bool:
        """True if this class overrides a stage."""
        return getattr(cls, stage) is not getattr(Homogenizer, stage)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state in plain types and tensors, which `torch.load` reads with `weights_only=True`."""
        return {name: map_nested(_copy, getattr(self, name)) for name in self.state_names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the state by a saved state.

        Raises:
            ConfigError: the saved names differ from `state_names`, or the values from their types; nothing has changed.
        """
        self._check_state(state)
        for name, value in state.items():
            current = getattr(self, name)
            if isinstance(current, Homogenizer):
                current.load_state_dict(value)
            else:
                setattr(self, name, map_nested(_copy, value))

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise unless a saved state has the names and types of this homogenizer's."""
        own = {name: getattr(self, name) for name in self.state_names}
        types = {name: Any if value is None else type(value) for name, value in own.items()}
        check_state(type(self).__name__, state, self.state_names if isinstance(self.state_names, Mapping) else types)
        for name, value in own.items():
            if isinstance(value, Homogenizer):
                value._check_state(state[name])

    def assign_state(self, values: Mapping[str, Any]) -> None:
        """Assign the values that `update` returned. Called by the pipeline."""
        for name, value in values.items():
            current = getattr(self, name)
            if isinstance(current, Homogenizer):
                current.assign_state(value)
            else:
                setattr(self, name, value)


def _copy(value: Any) -> Any:
    if isinstance(value, Homogenizer):
        return value.state_dict()
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)
