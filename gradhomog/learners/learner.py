"""The base class of all learners: meta-step, probe and evaluation. A subclass computes one row per task."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from gradhomog.autograd.check_optimizer import check_optimizer
from gradhomog.autograd.optimizer_metric import OptimizerMetric
from gradhomog.diagnosis.result import DiagnosisResult
from gradhomog.errors import OptionError
from gradhomog.learners import learner_rows
from gradhomog.learners.learner_rows import encoder_pattern, stage_rows
from gradhomog.learners.results import Evaluation, TaskRow, TaskRows
from gradhomog.learners.scoring import Loss, accuracies, check_classes, default_loss, explain_head_errors, score_tasks
from gradhomog.learners.step_rows import compute_meta_step
from gradhomog.learners.tasks import Task, TaskBatch
from gradhomog.learners.training_mode import training_mode
from gradhomog.ranks.communicator import Ranks, communicate
from gradhomog.registry import Registry, expression, installed
from gradhomog.registry.options import ValidatedConstructor, check_state
from gradhomog.rows import check_real
from gradhomog.step.pipelines import Entry, Pipeline, pipeline
from gradhomog.step.reports import StageReport, StepReport
from gradhomog.step.step import TaskKey


class OuterOptimizer(Protocol):
    """An optimizer that reads `.grad`: of `torch.optim`, `torchopt.Adam`, or a custom one."""

    def zero_grad(self) -> Any: ...
    def step(self) -> Any: ...


def check_holds_parameters(outer: OuterOptimizer, parameters: Iterable[Tensor]) -> None:
    """Raise if a PyTorch optimizer holds none of the parameters, so that its steps would train nothing.

    Raises:
        OptionError: the optimizer holds none of the parameters, or is L-BFGS.
    """
    if not isinstance(outer, torch.optim.Optimizer):
        return  # the parameters of other optimizers cannot be read
    if isinstance(outer, torch.optim.LBFGS):
        raise OptionError("`outer` must take a step without a closure, such as Adam; got LBFGS.")
    held = {id(parameter) for group in outer.param_groups for parameter in group["params"]}
    if held.isdisjoint(id(parameter) for parameter in parameters):
        raise OptionError(
            "`outer` must hold parameters of the learner; it holds none of them, so its step would train nothing. "
            "Create it with learner.parameters()."
        )


class Learner(ValidatedConstructor, ABC):
    """Trains an encoder and a head on batches of tasks; homogenizers act on the tasks' rows.

    Args:
        encoder: maps inputs `[n, *input]` to features `[n, features]`.
        head: maps features to outputs `[n, ways]` or `[n, outputs]`.
        homogenizers: a pipeline, or any value that `gradhomog.pipeline` accepts.
        loss: by default cross entropy for integer targets and mean squared error for others.

    Parameters of the learner have the names `encoder.<name>` and `head.<name>`; those with `requires_grad=False` are
    constants. A subclass may train further modules (inner learning rates, a relation network): it passes them to
    `register_module`, and their parameters have the names `learner.<name>`.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module, homogenizers: Any = None, loss: Loss | None = None) -> None:
        for name, module in (("encoder", encoder), ("head", head)):
            if not isinstance(module, nn.Module):
                raise OptionError(f"`{name}` must be a torch.nn.Module; got {type(module).__name__}.")
        self.encoder, self.head = encoder, head
        self.extra_modules = nn.ModuleDict()
        self.homogenizers: Pipeline = pipeline(homogenizers)
        self.loss = loss or default_loss
        named = self.named_parameters()
        check_real(named)
        if not named:
            raise OptionError("encoder and head must have at least one parameter with requires_grad=True; got none.")

    @abstractmethod
    def task_row(self, task: Task, key: TaskKey) -> TaskRow:
        """Adapt to a task and differentiate its query loss w.r.t. the parameters.

        Must restore parameters and buffers.
        Must call `self.homogenizers.begin(key, "support")` before the encoder runs on the support set, and
        `self.homogenizers.begin(key, "query")` before it runs on the query set.
        Must pass the query features to `self.homogenizers.transform(features[None], [key])`, and the last of the
        returned tensors to the head.
        """

    @abstractmethod
    def adapted_outputs(self, support_x: Tensor, support_y: Tensor, query_x: Tensor) -> Tensor:
        """Return outputs `[queries, ways]` of the network adapted to the support set, without any homogenizer.

        Called in evaluation mode. Must restore parameters and buffers. If `query_x` requires grad, the outputs should
        be differentiable w.r.t. it, with the adapted network as a constant: saliency maps require this, and are omitted
        for a learner that returns detached outputs.
        """

    def batch_row(self, batch: TaskBatch) -> TaskRow | None:
        """Return the rows of all tasks at once, each tensor with a first dimension `tasks`; optional.

        With None, the default, `task_row` is called for one task after the other. Must restore parameters and buffers.
        """
        return None

    def on_step_end(self) -> None:
        """Hook for schedules, called at the end of every `step`."""

    def register_module(self, name: str, module: nn.Module) -> None:
        """Add a module whose parameters are trained too, as `learner.<name>.*`; for the constructors of subclasses.

        The module is moved to the device and dtype of the encoder's first real parameter, and saved with the learner.
        """
        like = next(p for p in (*self.encoder.parameters(), *self.head.parameters()) if not p.is_complex())
        self.extra_modules[name] = module.to(like)

    def mode(self, training: bool) -> AbstractContextManager[None]:
        """Set the network to training or evaluation mode within the context; afterwards restore the previous mode."""
        return training_mode((self.encoder, self.head, self.extra_modules), training)

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters, each once: `encoder.*`, `head.*` and, for some learners, `learner.*`."""
        everything = nn.ModuleDict({"encoder": self.encoder, "head": self.head, "learner": self.extra_modules})
        return {name: p for name, p in everything.named_parameters() if p.requires_grad}

    def parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters, for an outer optimizer."""
        return list(self.named_parameters().values())

    def state_dict(self) -> dict[str, Any]:
        """Return the state of network and homogenizers, which `torch.load` reads with `weights_only=True`."""
        modules = {name: module.state_dict() for name, module in self._saved_modules().items()}
        return {**modules, "homogenizers": self.homogenizers.state_dict()}

    def _saved_modules(self) -> dict[str, nn.Module]:
        modules = {"encoder": self.encoder, "head": self.head}
        return {**modules, "learner": self.extra_modules} if len(self.extra_modules) else modules

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a saved state; network and pipeline must have the same structure. After an error nothing has changed."""
        parts = self._saved_modules()
        check_state(type(self).__name__, state, dict.fromkeys([*parts, "homogenizers"], Mapping))
        whole = nn.ModuleDict(parts)
        before = copy.deepcopy(whole.state_dict())
        try:
            for name, module in parts.items():
                module.load_state_dict(state[name])
            self.homogenizers.load_state_dict(state["homogenizers"])
        except Exception:
            whole.load_state_dict(before)  # all or nothing
            raise

    def rows(self, batch: TaskBatch | Sequence[Task]) -> TaskRows:
        """Compute one row per task without changing the learner; each task's graph is freed after its row is computed.

        Memory: one gradient per task, and the graph of one task.
        """
        batch = batch if isinstance(batch, TaskBatch) else TaskBatch.stack(batch)
        named = self.named_parameters()
        with (
            explain_head_errors(self.encoder, self.head, batch.query_x[0], batch.support_y, batch.query_y),
            self.mode(training=True), self.homogenizers.attached(self.encoder), torch.enable_grad(),
        ):  # fmt: skip
            found = self.batch_row(batch) or self._rows_by_task(batch, named)
        check_classes(found.outputs, batch.support_y)
        jacobian, unused = {}, set()
        for name, parameter in named.items():
            if (rows := found.gradients.get(name)) is None:
                rows = parameter.new_zeros(len(batch), *parameter.shape)
                unused.add(name)
            jacobian[name] = rows
        return TaskRows(
            jacobian, found.loss.double(), accuracies(found.outputs, batch.query_y), found.features,
            found.feature_grads, unused,
        )  # fmt: skip

    def _rows_by_task(self, batch: TaskBatch, named: Mapping[str, nn.Parameter]) -> TaskRow:
        tasks = len(batch)
        jacobian: dict[str, Tensor] = {}
        found: list[TaskRow] = []
        for index, (task, key) in enumerate(zip(batch, batch.keys, strict=True)):
            row = self.task_row(task, key)
            for name, gradient in row.gradients.items():
                if gradient is not None:
                    if name not in jacobian:
                        jacobian[name] = named[name].new_zeros(tasks, *gradient.shape)
                    jacobian[name][index] = gradient
            row.gradients = {}
            found.append(row)
        features = zip(*[row.features for row in found], strict=True)
        feature_grads = zip(*[row.feature_grads for row in found], strict=True)
        losses, outputs = [row.loss.detach() for row in found], [row.outputs for row in found]
        return TaskRow(
            torch.stack(losses), jacobian, torch.stack(outputs), list(map(torch.stack, features)),
            list(map(torch.stack, feature_grads)),
        )  # fmt: skip

    def step(
        self, batch: TaskBatch | Sequence[Task], outer: OuterOptimizer, group: Ranks | ProcessGroup | None = None,
        metric: torch.optim.Optimizer | None = None,
    ) -> StepReport:  # fmt: skip
        """Take one meta-step: rows, homogenization, `.grad`, `outer.step()`.

        The direction is in the parameters' `.grad`, not in the report. If a homogenizer such as `tracked` chooses
        tasks, only their rows are computed, and the report is about them. If a task, a homogenizer or the nonfinite
        policy raises, parameters and optimizer are unchanged. As with `loss.backward()`, a parameter that no task's
        loss depends on, such as the head of ProtoNet, has the gradient None, so that weight decay does not change it.

        In a process group of several ranks, `batch` contains the tasks of this rank, at least one, and `group` is the
        group or `Ranks("tasks", group)`: every rank takes the step of one process with the tasks of all ranks.

        With `metric=outer`, rows are homogenized in the metric of the optimizer's step, see `OptimizerMetric`.

        Raises:
            OptionError: `outer` is a PyTorch optimizer that holds none of the learner's parameters, L-BFGS, or
                `SparseAdam`; the process is one of several ranks, and `group` is None.
            RankError: another rank raised an error, or has another pipeline, number of steps or initial values.
        """
        named, communicator = self.named_parameters(), communicate(group, "tasks")
        check_holds_parameters(outer, named.values())
        with communicator.raise_together():
            batch = batch if isinstance(batch, TaskBatch) else TaskBatch.stack(batch)
        if self.homogenizers.requirements.choosing or not self.homogenizers.steps:
            check_optimizer(outer, self.homogenizers)
        if self.homogenizers.requirements.choosing:
            batch = batch.select(self.homogenizers.choose(batch.keys))
        scaling = None if metric is None else OptimizerMetric.of_step(metric, named, self.homogenizers, inspect=True)
        step = compute_meta_step(self.rows, batch, named, self.homogenizers, communicator, scaling)
        outer.zero_grad()
        for parameter in named.values():
            parameter.grad = None
        report = step.write()
        outer.step()
        self.on_step_end()
        return report

    def probe(self, batch: TaskBatch | Sequence[Task]) -> list[StageReport]:
        """Report the encoder's rows of one batch without homogenizers, with the first, with the first two, and so on.

        The reports contain the effect of each homogenizer on norms and cosines, including those that act before rows
        exist (`attach`, `transform`). All of them use the same random numbers; learner and homogenizers do not change.
        If there are no parameters `encoder.*`, the reports are about all parameters.

        Cost: one `rows` for each homogenizer that acts before rows exist, and one more.
        """
        batch = batch if isinstance(batch, TaskBatch) else TaskBatch.stack(batch)
        pattern = encoder_pattern(self.named_parameters())
        return [StageReport(name, rows.gramian(pattern)) for name, rows in stage_rows(self, batch)]

    def diagnose(
        self, stream: learner_rows.BatchStream | Iterable[TaskBatch | Sequence[Task]], batches: int = 48
    ) -> DiagnosisResult:
        """Diagnose signal, noise and conflict of the encoder's rows by domain; see `gradhomog.Diagnosis`.

        `stream` is an iterable of independent batches, or has a method `batch(index)`. Rows are without homogenizers;
        the learner and the global generators do not change. Cost: `batches` times `rows`.
        """
        return learner_rows.diagnose(self, stream, batches)

    def predict(self, support_x: Tensor, support_y: Tensor, query_x: Tensor) -> Tensor:
        """Adapt to a support set and return the outputs for `query_x`; homogenizers are not used."""
        with explain_head_errors(self.encoder, self.head, support_x, support_y), self.mode(training=False):
            return self._outputs(support_x, support_y, query_x)

    def _outputs(self, *inputs: Tensor) -> Tensor:
        """Return detached `adapted_outputs`; inference mode is disabled, because the inner loop differentiates."""
        with torch.inference_mode(False):
            outputs = self.adapted_outputs(*(x.clone() if x.is_inference() else x for x in inputs)).detach()
        check_classes(outputs, inputs[1])
        return outputs

    def evaluate(self, tasks: TaskBatch | Iterable[Task]) -> Evaluation:
        """Adapt to each task and score its query set; homogenizers are not used, and the learner does not change."""

        def compute(task: Task) -> tuple[Tensor, float]:
            with explain_head_errors(self.encoder, self.head, task.support_x, task.support_y, task.query_y):
                outputs = self._outputs(task.support_x, task.support_y, task.query_x)
                return outputs, float(self.loss(outputs, task.query_y))

        with self.mode(training=False):
            return score_tasks(tasks, compute)


def learner(
    name: str,
    encoder: nn.Module,
    head: nn.Module,
    *,
    homogenizers: str | Pipeline | Sequence[Entry] | None = None,
    registry: Registry | None = None,
    **options: Any,
) -> Learner:
    """Create a learner by name: `learner("maml", encoder, head, homogenizers="pcgrad", inner_steps=5)`.

    `name` may contain options, as in a run file: `"maml(first_order=true)"`; keywords override them.
    """
    selector, written = expression.parse_one(name)
    pipe = pipeline(homogenizers, registry=registry)
    info, _, made = (registry or installed()).make(
        "learners", selector, {**written, **options}, encoder, head, homogenizers=pipe
    )
    checked: Learner = info.checked(made, Learner)
    return checked
