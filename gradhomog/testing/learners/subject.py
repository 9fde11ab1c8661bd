"""The learner under check: fresh learners with a small network, and few-shot tasks for them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gradhomog.errors import GradhomogError, PluginRunError
from gradhomog.learners.learner import Learner
from gradhomog.learners.tasks import Task, TaskBatch
from gradhomog.registry import Registry
from gradhomog.registry.options import bind
from gradhomog.registry.specs import LearnerSpec
from gradhomog.step.pipelines import pipeline
from gradhomog.testing.check import NotApplicable
from gradhomog.testing.learners.auxiliary_homogenizers import InputDependentWeights
from gradhomog.testing.plugin_subject import PluginSubject
from gradhomog.testing.small_network import WAYS, network, task
from gradhomog.testing.snapshots import seeded_global_generators
from gradhomog.testing.training_state import STEPS

TaskType = Literal["classification", "regression"]
TARGETS: Mapping[TaskType, int | None] = {"classification": None, "regression": 2}
Run = tuple[Learner, torch.optim.Optimizer]


class LearnerSubject(PluginSubject[LearnerSpec]):
    """The learner under check, given by name or spec, with its options."""

    kind = "learners"
    spec_type = LearnerSpec

    def __init__(self, plugin: Any, registry: Registry | None = None) -> None:
        super().__init__(plugin, registry)
        bind(self.spec, self.name, self.options)

    # -- supported tasks and networks --------------------------------------------------------------------------------

    @functools.cached_property
    def row_errors(self) -> dict[TaskType, Exception]:
        """Errors of computing rows with the small network, by type of task; empty without errors."""
        errors: dict[TaskType, Exception] = {}
        for task_type in get_args(TaskType):
            try:
                self.learner(task_type=task_type).rows(self.batch(task_type=task_type))
            except Exception as error:  # reported by `computes_rows` and `task_types_supported_or_rejected`
                errors[task_type] = error
        return errors

    @property
    def task_type(self) -> TaskType:
        """The type of task for the checks: classification if the learner supports it, else regression."""
        for task_type in get_args(TaskType):
            if task_type not in self.row_errors:
                return task_type  # type: ignore[no-any-return]
        raise NotApplicable("the learner computes no rows with a small network: see the check `computes_rows`")

    @property
    def targets(self) -> int | None:
        """The number of regression targets; None in classification."""
        return TARGETS[self.task_type]

    @functools.cached_property
    def accepts_batch_norm(self) -> bool:
        """True unless the learner rejects a network with batch normalization by a `GradhomogError`."""
        try:
            self.learner(norm=True).rows(self.batch())
        except GradhomogError:
            return False
        except Exception:  # any other error is reported by the check `batch_norm`
            return True
        return True

    # -- making ------------------------------------------------------------------------------------------------------

    def make(
        self, encoder: nn.Module, head: nn.Module, homogenizers: Any = None, seed: int = 0, /, **options: Any
    ) -> Learner:
        """Make a fresh learner with a network and the options under check, updated by `options`.

        The global generators are seeded during construction, because they initialize the learner's own modules.
        """
        merged, pipe = {**self.options, **options}, pipeline(homogenizers, registry=self.registry)
        with seeded_global_generators(seed):
            if self.info is not None:
                learner = self.registry.make("learners", self.name, merged, encoder, head, homogenizers=pipe)[2]
            else:
                learner = self.spec.factory(encoder, head, homogenizers=pipe, **bind(self.spec, self.name, merged))
        if not isinstance(learner, Learner):
            raise PluginRunError(f"{self} must make a gradhomog.Learner; got {type(learner).__name__}.")
        return learner

    def make_with(self, **options: Any) -> Learner:
        return self.make(*network(), **options)

    def learner(
        self, homogenizers: Any = None, *, seed: int = 0, norm: bool = False, dtype: torch.dtype = torch.float64,
        task_type: TaskType | None = None, nonfinite: Any = "raise",
    ) -> Learner:  # fmt: skip
        """Make a fresh learner with a fresh network, initialized from the seed, for the type of task under check."""
        encoder, head = network(seed, TARGETS[task_type or self.task_type] or WAYS, norm)
        pipe = pipeline(homogenizers, nonfinite=nonfinite, registry=self.registry)
        return self.make(encoder.to(dtype), head.to(dtype), pipe, seed)

    def task(self, seed: int, domain: str = "", task_type: TaskType | None = None) -> Task:
        """Return a float64 task of the type under check."""
        return task(seed, domain, shots=2, queries=3, targets=TARGETS[task_type or self.task_type])

    def batch(self, seed: int = 0, tasks: int = 3, task_type: TaskType | None = None) -> TaskBatch:
        """Return different float64 tasks, each of another domain."""
        return TaskBatch.stack([self.task(100 * seed + slot, f"domain {slot}", task_type) for slot in range(tasks)])

    # -- runs that are saved and continued, for `training_state` -----------------------------------------------------

    def begin(self, seed: int = 0) -> Run:
        learner = self.learner([InputDependentWeights()], seed=seed)
        return learner, torch.optim.Adam(learner.parameters(), lr=0.05)

    def train(self, run: Run, start: int = 0) -> dict[str, Tensor]:
        """Return the losses of each step, then the parameters and a prediction."""
        learner, outer = run
        results: dict[str, Tensor] = {}
        for step in range(start, start + STEPS):
            losses = learner.step(self.batch(seed=step), outer).losses
            assert losses is not None  # None only in reports of pipelines that were called without losses
            results[f"the losses of step {step + 1}"] = losses
        results |= {f"`{name}`": parameter.detach().clone() for name, parameter in learner.named_parameters().items()}
        task = self.task(9)
        return {**results, "a prediction": learner.predict(task.support_x, task.support_y, task.query_x)}

    def save(self, run: Run) -> Any:
        return [part.state_dict() for part in run]

    def load(self, run: Run, state: Any) -> None:
        run[0].load_state_dict(state[0])
        run[1].load_state_dict(state[1])
