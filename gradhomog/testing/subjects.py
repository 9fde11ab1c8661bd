"""The plugin under check, of each kind: fresh objects of it, and the steps and tasks that run them."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Generic, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from gradhomog.errors import GradhomogError, OptionError, PluginRunError
from gradhomog.learners.learner import Learner
from gradhomog.learners.tasks import Task, TaskBatch
from gradhomog.registry import Kind, PluginInfo, Registry, expression, installed
from gradhomog.registry.options import validate_options
from gradhomog.registry.specs import HomogenizerSpec, LearnerSpec
from gradhomog.step.homogenizer import Homogenizer
from gradhomog.step.member import Member
from gradhomog.step.pipelines import Pipeline, pipeline
from gradhomog.testing import small_network
from gradhomog.testing.check_results import NotApplicable
from gradhomog.testing.small_network import WAYS, InputDependentWeights, network
from gradhomog.testing.snapshots import seeded_global_generators

Spec = TypeVar("Spec", HomogenizerSpec, LearnerSpec)
STEPS = 4  # steps of a run that is saved or compared with another run; a continued run starts at this number


class PluginSubject(Generic[Spec]):
    """The plugin under check, given as text (`"static(weights=[1, 2])"`), as name and options, or as a spec.

    A spec needs no distribution.

    Raises:
        UnknownPluginError, PluginLoadError, OptionError, …: the plugin or one of its options does not exist.
    """

    kind: Kind
    spec_type: type[Spec]
    make_with: Callable[..., Any]
    """Makes a fresh plugin for a check that needs no special network, size or pipeline."""

    def __init__(self, plugin: Any, registry: Registry | None = None) -> None:
        self.registry = registry or installed()
        self.info: PluginInfo | None = None
        self.options: dict[str, Any] = {}
        self.spec: Spec
        match plugin:
            case str():
                self.name, self.options = expression.parse_one(plugin)
            case (str(name), Mapping() as options):
                self.name, written = expression.parse_one(name)
                self.options = {**written, **options}
            case self.spec_type():
                self.spec, self.name = plugin, getattr(plugin.factory, "__name__", self.kind[:-1])
            case _:
                raise OptionError(
                    f"a plugin must be a name, a pair (name, options) or a {self.spec_type.__name__}; got {plugin!r}."
                )
        if not isinstance(plugin, self.spec_type):
            self.info, self.spec = self.registry.load(self.kind, self.name)  # type: ignore[assignment]
        validate_options(self.spec, self.name, self.options)

    def __str__(self) -> str:
        text = f"{self.kind[:-1]} {expression.render_one(self.name, self.options)}"
        if self.info is None:
            return text
        return f"{text} of {self.info.distribution} {self.info.version} ({self.info.module})"

    @property
    def claims(self) -> Set[str]:
        return getattr(self.spec, "traits", frozenset())


# -- learners --------------------------------------------------------------------------------------------------------

TaskType = Literal["classification", "regression"]
TARGETS: Mapping[TaskType, int | None] = {"classification": None, "regression": 2}
LearnerRun = tuple[Learner, torch.optim.Optimizer]


class LearnerSubject(PluginSubject[LearnerSpec]):
    """The learner under check, with the small network and few-shot tasks for it."""

    kind = "learners"
    spec_type = LearnerSpec

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
        except Exception as error:  # any other error is reported by the check `batch_norm`
            return not isinstance(error, GradhomogError)
        return True

    def make_for(
        self, encoder: nn.Module, head: nn.Module, homogenizers: Any = None, seed: int = 0, /, **options: Any
    ) -> Learner:
        """Make a fresh learner for a network.

        The global generators are seeded during construction, because they initialize the learner's own modules.
        """
        pipe, merged = pipeline(homogenizers, registry=self.registry), {**self.options, **options}
        with seeded_global_generators(seed):
            if self.info is not None:
                made = self.registry.make("learners", self.name, merged, encoder, head, homogenizers=pipe)[2]
            else:
                own = validate_options(self.spec, self.name, merged)
                made = self.spec.factory(encoder, head, homogenizers=pipe, **own)
        if not isinstance(made, Learner):
            raise PluginRunError(f"{self} must make a gradhomog.Learner; got {type(made).__name__}.")
        return made

    def make_with(self, **options: Any) -> Learner:
        return self.make_for(*network(), **options)

    def learner(
        self, homogenizers: Any = None, *, seed: int = 0, norm: bool = False, dtype: torch.dtype = torch.float64,
        task_type: TaskType | None = None, nonfinite: Any = "raise",
    ) -> Learner:  # fmt: skip
        """Make a fresh learner with a fresh network, initialized from the seed, for the type of task under check."""
        encoder, head = network(seed, TARGETS[task_type or self.task_type] or WAYS, norm)
        pipe = pipeline(homogenizers, nonfinite=nonfinite, registry=self.registry)
        return self.make_for(encoder.to(dtype), head.to(dtype), pipe, seed)

    def task(self, seed: int, domain: str = "", task_type: TaskType | None = None) -> Task:
        """Return a float64 task of the type under check."""
        return small_network.task(seed, domain, queries=3, targets=TARGETS[task_type or self.task_type])

    def batch(self, seed: int = 0, tasks: int = 3, task_type: TaskType | None = None) -> TaskBatch:
        """Return different float64 tasks, each of another domain."""
        return TaskBatch.stack([self.task(100 * seed + slot, f"domain {slot}", task_type) for slot in range(tasks)])

    def begin(self, seed: int = 0) -> LearnerRun:
        """Return a fresh run for the checks of training state: a learner with its optimizer."""
        learner = self.learner([InputDependentWeights()], seed=seed)
        return learner, torch.optim.Adam(learner.parameters(), lr=0.05)

    def train(self, run: LearnerRun, start: int = 0) -> dict[str, Tensor]:
        """Return the losses of each step, then the parameters and a prediction."""
        learner, outer = run
        results: dict[str, Any] = {
            f"the losses of step {step + 1}": learner.step(self.batch(seed=step), outer).losses
            for step in range(start, start + STEPS)
        }
        results |= {f"`{name}`": parameter.detach().clone() for name, parameter in learner.named_parameters().items()}
        task = self.task(9)
        return {**results, "a prediction": learner.predict(task.support_x, task.support_y, task.query_x)}


@functools.lru_cache(maxsize=8)  # one list for all homogenizers checked in this process
def trainable_learners(registry: Registry, names: tuple[str, ...]) -> tuple[LearnerSubject, ...]:
    """Return the learners of these names that can classify with the small network, those with exact rows first."""
    usable = []
    for name in names:
        with contextlib.suppress(Exception):  # its own checks report a learner that needs another network
            subject = LearnerSubject(name, registry)
            subject.learner(task_type="classification").rows(small_network.batch(tasks=1))
            usable.append(subject)
    return tuple(sorted(usable, key=lambda subject: ("exact_rows" not in subject.claims, subject.name)))


# -- homogenizers ----------------------------------------------------------------------------------------------------


class HomogenizerSubject(PluginSubject[HomogenizerSpec]):
    """The homogenizer under check, in fresh pipelines."""

    kind = "homogenizers"
    spec_type = HomogenizerSpec

    def __init__(self, plugin: Any, registry: Registry | None = None) -> None:
        super().__init__(plugin, registry)
        pipe = self.pipeline()
        self.attaches = bool(pipe.requirements.attaching)
        self.transforms = len(pipe.requirements.transforming)
        self.acts_before_rows = self.attaches or self.transforms > 0
        self.stateful = any(homogenizer.state_names for homogenizer in pipe)
        self.reads_traces = any(member.declares_needs and "kernel_traces" in member.needs for member in pipe.members)

    # -- making ------------------------------------------------------------------------------------------------------

    def pipeline(self, nonfinite: Any = "raise", assume: str | None = None, **options: Any) -> Pipeline:
        """Make a fresh pipeline of this homogenizer. With `assume`, the homogenizer claims that trait too."""
        if self.info is not None:
            pipe = pipeline([(self.name, {**self.options, **options})], nonfinite=nonfinite, registry=self.registry)
        else:
            pipe = self._pipeline_from_spec(options, nonfinite)
        if assume is None:
            return pipe
        return Pipeline([_with_claim(member, assume) for member in pipe.members], nonfinite)

    make_with = pipeline

    def _pipeline_from_spec(self, options: Mapping[str, Any], nonfinite: Any) -> Pipeline:
        merged = {**self.options, **options}
        made = self.spec.factory(**validate_options(self.spec, self.name, merged))
        if isinstance(made, Homogenizer):
            return Pipeline([Member(made, self.name, merged, None, self.spec)], nonfinite)
        if isinstance(made, Sequence):
            return pipeline(made, nonfinite=nonfinite, registry=self.registry)
        raise PluginRunError(f"{self} must make a gradhomog.Homogenizer; got {type(made).__name__}.")

    @property
    def installed_learners(self) -> tuple[LearnerSubject, ...]:
        return trainable_learners(self.registry, tuple(self.registry.names("learners")))

    def learners(self) -> tuple[LearnerSubject, ...]:
        """Return the learners for the check: all if the homogenizer has `attach` or `transform`, else one.

        Rows that do not depend on the homogenizer are covered by the checks of learners.
        """
        found = self.installed_learners
        if self.reads_traces:
            raise NotApplicable("it reads traces of tangent kernels, which learners do not supply")
        if not found:
            raise NotApplicable("no installed learner can train on the small network")
        return found if self.acts_before_rows else found[:1]

    # -- steps -------------------------------------------------------------------------------------------------------

    def combine(
        self, rows: Tensor | Mapping[str, Tensor], *, pipe: Pipeline | None = None, losses: Tensor | None = None,
        steps: int = 1, order: Tensor | None = None, domains: Sequence[str] | None = None, create_graph: bool = False,
    ) -> Any:  # fmt: skip
        """Run steps on the same rows, with matching losses, domains and features; return the last direction.

        `order` permutes the other inputs of the tasks; `rows` must be permuted already.
        """
        pipe = pipe or self.pipeline()
        inputs = self.step_inputs(rows, losses, order, domains)
        for _ in range(steps):
            direction = pipe.combine(rows, create_graph=create_graph, **inputs)
        return direction

    def step_inputs(
        self, rows: Tensor | Mapping[str, Tensor], losses: Tensor | None = None, order: Tensor | None = None,
        domains: Sequence[str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Return all other inputs of a step: one query per task, whose features are the entries of its row.

        The trace of a task's tangent kernel is the squared norm of its row, as for one residual r with the loss r.
        """
        blocks = [rows] if isinstance(rows, Tensor) else list(rows.values())
        matrix = torch.cat([block.reshape(len(block), -1) for block in blocks], dim=1)  # keeps the graph of the rows
        tasks = len(matrix)
        numbers = torch.arange(tasks) if order is None else order
        if losses is None:
            losses = torch.linspace(0.5, 1.5, tasks, dtype=torch.float64)[numbers]
        # At least two features, because a method may rely on that.
        features = (matrix if matrix.shape[1] > 1 else matrix.repeat(1, 2))[:, None, :]
        names = domains or [f"domain {number}" for number in range(tasks)]
        return {
            "losses": losses,
            "domains": [names[number] for number in numbers.tolist()],
            "features": self.at_taps(features),
            "feature_grads": self.at_taps(features.clone()),
            "targets": torch.zeros(tasks, 1, dtype=torch.int64),
            "kernel_traces": self._kernel_traces([matrix]),
        }

    def _kernel_traces(self, blocks: Sequence[Tensor]) -> Tensor | None:
        """Return squared norms of rows `[tasks, *shape]`, which keep the graph, if the homogenizer reads traces."""
        if not self.reads_traces:
            return None
        return torch.stack([block.double().flatten(1).square().sum(1) for block in blocks]).sum(0)

    def at_taps(self, features: Tensor) -> Any:
        """Return features in the form of `combine`: one tensor, or a list if there are several `transform` stages."""
        return features if self.transforms <= 1 else [features] * (self.transforms + 1)

    def outputs(self, pipe: Pipeline, steps: int = STEPS, start: int = 0) -> list[Tensor]:
        """Return all results of some steps, which depend only on the state before them.

        If the homogenizer has `attach` or `transform`, the steps train a small network.
        """
        results: list[Tensor] = []
        for number in range(start, start + steps):
            if self.acts_before_rows:
                results += self.encoder_step(pipe, small_network.batch(seed=number))
            else:
                generator = torch.Generator().manual_seed(number)
                rows = torch.randn(4, 12, generator=generator, dtype=torch.float64)
                losses = torch.rand(4, generator=generator, dtype=torch.float64) + 0.5
                results.append(self.combine(rows, pipe=pipe, losses=losses))
        return results

    def encoder_step(self, pipe: Pipeline, batch: TaskBatch) -> list[Tensor]:
        """Run one step through all stages, like a learner without inner loop; return losses, rows and direction."""
        encoder, head = network()
        names, parameters = zip(*encoder.named_parameters(), strict=True)
        gradients: list[tuple[Tensor, ...]] = []
        taps: list[list[Tensor]] = []
        losses: list[Tensor] = []
        with pipe.attached(encoder):
            for task, key in zip(batch, batch.keys, strict=True):
                pipe.begin(key, "support")
                encoder(task.support_x)
                pipe.begin(key, "query")
                taps.append(pipe.transform(encoder(task.query_x)[None], [key]))
                losses.append(nn.functional.cross_entropy(head(taps[-1][-1][0]), task.query_y))
                gradients.append(torch.autograd.grad(losses[-1], [*parameters, *taps[-1]]))
        stacked = [torch.stack(parts) for parts in zip(*gradients, strict=True)]
        direction: Any = pipe.combine(
            dict(zip(names, stacked, strict=False)), torch.stack(losses).detach(), domains=batch.domains,
            features=[torch.cat(tap).detach() for tap in zip(*taps, strict=True)],
            feature_grads=[tap[:, 0] for tap in stacked[len(names) :]], targets=batch.query_y,
            kernel_traces=self._kernel_traces(stacked[: len(names)]),
        )  # fmt: skip
        return [*(loss.detach() for loss in losses), *stacked, *direction.values()]

    # -- runs that are saved and continued, for the checks of training state -----------------------------------------

    def begin(self, seed: int = 0) -> tuple[Pipeline]:
        return (self.pipeline(),)

    def train(self, run: tuple[Pipeline], start: int = 0) -> dict[str, Tensor]:
        return {f"output {index}": value for index, value in enumerate(self.outputs(*run, start=start))}


def _with_claim(member: Member, trait: str) -> Member:
    spec = member.spec and dataclasses.replace(member.spec, traits=member.spec.traits | {trait})
    return dataclasses.replace(member, spec=spec)
