"""The learner under check: fresh ones on a small network, and few-shot tasks for them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gradhomog.errors import GradhomogError, PluginRunError
from gradhomog.learners import Learner
from gradhomog.pipelines import pipeline
from gradhomog.registry import Registry
from gradhomog.registry.options import bind
from gradhomog.specs import LearnerSpec
from gradhomog.tasks import Task, TaskBatch
from gradhomog.testing.checking import NotApplicable
from gradhomog.testing.learners.probes import InputDependentWeights
from gradhomog.testing.plugin_subject import PluginSubject
from gradhomog.testing.small_network import WAYS, network, task
from gradhomog.testing.snapshots import seeded
from gradhomog.testing.training_state import STEPS

TaskType = Literal["classification", "regression"]
TARGETS: Mapping[TaskType, int | None] = {"classification": None, "regression": 2}
Run = tuple[Learner, torch.optim.Optimizer]


class LearnerSubject(PluginSubject[LearnerSpec]):
    """A learner, by name or by its spec, with the options it is checked with."""

    kind = "learners"
    spec_type = LearnerSpec

    def __init__(self, what: Any, registry: Registry | None = None) -> None:
        super().__init__(what, registry)
        bind(self.spec, self.name, self.options)

    # -- what it can be checked on -----------------------------------------------------------------------------------

    @functools.cached_property
    def refusals(self) -> dict[TaskType, Exception]:
        """Why it forms no rows on the small network, by type of task; empty if it does."""
        found: dict[TaskType, Exception] = {}
        for task_type in get_args(TaskType):
            try:
                self.learner(task_type=task_type).rows(self.batch(task_type=task_type))
            except Exception as error:  # the checks `forms_rows` and `serves_or_refuses` report it
                found[task_type] = error
        return found

    @property
    def task_type(self) -> TaskType:
        """The type of task that it is checked on: classification, if it serves that."""
        for task_type in get_args(TaskType):
            if task_type not in self.refusals:
                return task_type  # type: ignore[no-any-return]
        raise NotApplicable("it forms no rows on a small network: see the check `forms_rows`")

    @property
    def targets(self) -> int | None:
        """The number of regression targets; None in classification."""
        return TARGETS[self.task_type]

    @functools.cached_property
    def accepts_batch_norm(self) -> bool:
        """Whether it does not refuse a network with batch normalization."""
        try:
            self.learner(norm=True).rows(self.batch())
        except GradhomogError:
            return False
        except Exception:  # not a refusal: the check `batch_norm` reports it
            return True
        return True

    # -- making ------------------------------------------------------------------------------------------------------

    def make(
        self, encoder: nn.Module, head: nn.Module, homogenizers: Any = None, seed: int = 0, /, **options: Any
    ) -> Learner:
        """A fresh one on a network, with the options it is checked with and others.

        The global generators are seeded while it is made: its own modules are initialized from them.
        """
        given, pipe = {**self.options, **options}, pipeline(homogenizers, registry=self.registry)
        with seeded(seed):
            if self.info is not None:
                made = self.registry.make("learners", self.name, given, encoder, head, homogenizers=pipe)[2]
            else:
                made = self.spec.factory(encoder, head, homogenizers=pipe, **bind(self.spec, self.name, given))
        if not isinstance(made, Learner):
            raise PluginRunError(f"{self} must make a gradhomog.Learner; it made a {type(made).__name__}.")
        return made

    def make_with(self, **options: Any) -> Learner:
        return self.make(*network(), **options)

    def learner(
        self, homogenizers: Any = None, *, seed: int = 0, norm: bool = False, dtype: torch.dtype = torch.float64,
        task_type: TaskType | None = None, nonfinite: Any = "raise",
    ) -> Learner:  # fmt: skip
        """A fresh one on a fresh network, initialized by the seed, for the type of task that it is checked on."""
        encoder, head = network(seed, TARGETS[task_type or self.task_type] or WAYS, norm)
        pipe = pipeline(homogenizers, nonfinite=nonfinite, registry=self.registry)
        return self.make(encoder.to(dtype), head.to(dtype), pipe, seed)

    def task(self, seed: int, domain: str = "", task_type: TaskType | None = None) -> Task:
        """A task for it, float64."""
        return task(seed, domain, shots=2, queries=3, targets=TARGETS[task_type or self.task_type])

    def batch(self, seed: int = 0, tasks: int = 3, task_type: TaskType | None = None) -> TaskBatch:
        """Different tasks of different domains, float64."""
        return TaskBatch.stack([self.task(100 * seed + slot, f"domain {slot}", task_type) for slot in range(tasks)])

    # -- a run that is saved and continued: `training_state` ---------------------------------------------------------

    def begin(self, seed: int = 0) -> Run:
        made = self.learner([InputDependentWeights()], seed=seed)
        return made, torch.optim.Adam(made.parameters(), lr=0.05)

    def train(self, run: Run, start: int = 0) -> dict[str, Tensor]:
        """Losses of each step, then parameters and a prediction."""
        made, outer = run
        found: dict[str, Tensor] = {}
        for step in range(start, start + STEPS):
            found[f"the losses of step {step + 1}"] = made.step(self.batch(seed=step), outer).losses
        found |= {f"`{name}`": parameter.detach().clone() for name, parameter in made.named_parameters().items()}
        given = self.task(9)
        return {**found, "a prediction": made.predict(given.support_x, given.support_y, given.query_x)}

    def save(self, run: Run) -> Any:
        return [part.state_dict() for part in run]

    def load(self, run: Run, state: Any) -> None:
        run[0].load_state_dict(state[0])
        run[1].load_state_dict(state[1])
