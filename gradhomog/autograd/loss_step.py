"""The record of one step from losses: its options, the losses, and the traces of the tangent kernels of residuals."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradhomog.autograd import inputs
from gradhomog.autograd.backward_passes import BackwardPasses
from gradhomog.autograd.check_optimizer import check_closure
from gradhomog.autograd.loss_graph import LossGraph, find_graph
from gradhomog.errors import OptionError
from gradhomog.ranks.communicator import Communicator, GroupCommunicator
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.step import KernelTraces, Step, TaskKey, task_keys

COLLECTIVE = re.compile("sync_?batch_?norm|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE)
"""Names of autograd nodes whose backward passes have collective operations."""


CHOICES = {
    "level": get_args(inputs.Level),
    "memory": get_args(inputs.Memory),
    "heads": get_args(inputs.Heads),
    "reduction": get_args(inputs.Reduction),
}
"""The values of options that are one of several texts."""


@dataclass(frozen=True)
class StepOptions:
    """The options of a step, as in `gradhomog.backward`; validated once.

    Attributes:
        communicator: the ranks of the step; one process is a group of one rank.
        measure: tensors whose gradients give norms and inner products, as in `gradhomog.backward`.
        reduction: `"sum"` multiplies the direction by the number of rows, as in `gradhomog.loss`.

    Raises:
        OptionError: an option is invalid, has no effect, or contradicts another.
    """

    pipe: Pipeline
    communicator: Communicator
    level: inputs.Level = "parameters"
    per: inputs.Per = "model"
    heads: inputs.Heads = "own"
    inspect: bool = False
    memory: inputs.Memory = "auto"
    create_graph: bool = False
    reduction: inputs.Reduction = "mean"
    metric: Optimizer | None = None
    measure: inputs.Measure | None = None

    def __post_init__(self) -> None:
        pipe, per = self.pipe, self.per
        if not isinstance(pipe, Pipeline):
            raise OptionError(
                f"`pipe` must be a pipeline; got {pipe!r}. Create it once before the loop: "
                "pipe = gradhomog.pipeline('pcgrad')."
            )
        for option, allowed in CHOICES.items():
            if (value := getattr(self, option)) not in allowed:
                *first, last = map(repr, allowed)
                raise OptionError(f"`{option}` must be {', '.join(first)} or {last}; got {value!r}.")
        if self.level == "features" and per != "model":
            raise OptionError(
                f"`per` groups parameters, so it must be 'model' if level='features'; got per={per!r}. Remove `per` or "
                "`level`."
            )
        if self.level == "features" and pipe.requirements.choosing:
            raise OptionError(
                f"{pipe.requirements.choosing[0].selector} keeps rows from step to step, but gradients w.r.t. features "
                "belong to the examples of one batch. Use level='parameters'."
            )
        self._check_measure()
        if self.metric is not None and self.level == "features":
            raise OptionError("`metric` is one of parameters, so it must be None if level='features'.")
        if self.heads == "weighted" and self.create_graph:
            raise OptionError("heads='weighted' cannot keep a graph; use heads='own' with create_graph=True.")
        replacing = pipe.requirements.replacing_rows
        if self.heads == "weighted" and (replacing or per != "model"):
            reason = f"{' and '.join(replacing)} replaces rows" if replacing else f"per={per!r} has weights per group"
            raise OptionError(
                "heads='weighted' requires a direction that is a weighted mean of the tasks' gradients, but "
                f"{reason}. Use heads='own'."
            )

    def _check_measure(self) -> None:
        readers, metric = self.pipe.requirements.readers, self.metric and type(self.metric).__name__
        found = {
            **{
                member: f"{member}, which reads {kind}" for kind in ("jacobian", "features") for member in readers[kind]
            },
            "level": f"level={self.level!r}",
            "per": f"per={self.per!r}",
            "nonfinite": f"nonfinite={self.pipe.nonfinite!r}",
            "metric": f"metric={metric}",
        }
        allowed = ("level='parameters'", "per='model'", "nonfinite='raise'", "metric=None")
        refused = [text for text in found.values() if text not in allowed]
        if self.measure is not None and refused:
            raise OptionError(
                "`measure` requires a pipeline that reads norms or inner products only, "
                f"{', '.join(allowed)}; got {', '.join(refused)}. Remove it or `measure`."
            )

    def check_features(self, features: inputs.Features | None) -> None:
        """Raise if features are required and are not passed.

        Raises:
            OptionError: the message names the homogenizer or the option.
        """
        requirements = self.pipe.requirements
        reading = requirements.readers["features"]
        if features is None and (self.level == "features" or reading):
            reason = f"{' and '.join(reading)} reads features" if reading else "level='features' requires features"
            raise OptionError(f"{reason}: pass the output of the shared part of the model as `features`.")
        transforms = [member.selector for member in requirements.transforming]
        if transforms and not isinstance(features, inputs.TaskFeatures):
            verb = "transform" if len(transforms) > 1 else "transforms"
            raise OptionError(
                f"{' and '.join(transforms)} {verb} the input of the heads. Create it by views = "
                "gradhomog.task_features(z, pipe, tasks=N), pass views[i] to head i, and pass features=views here."
            )


@dataclass(frozen=True)
class LossStep:
    """One step from losses.

    Attributes:
        graph: the losses of the tasks in the step, with the leaves that they depend on.
        given: the losses that were passed, before homogenizers chose tasks.
        names: one for each task, or none.
        targets: of the present tasks.
        kernel_traces: computes the traces of the residuals' tangent kernels; None if no homogenizer reads them.
    """

    options: StepOptions
    graph: LossGraph
    given: inputs.TaskLosses
    names: tuple[str, ...] = ()
    targets: Tensor | None = None
    kernel_traces: KernelTraces | None = None

    def keys(self, slots: tuple[int, ...]) -> tuple[TaskKey, ...]:
        """Return the keys of the tasks in some slots."""
        return task_keys(slots, tuple(self.names[slot] for slot in slots) if self.names else ())

    def with_absent_keys(self, step: Step) -> Step:
        """Return the record for the pipeline with the keys of the tasks that were passed and are not in the step."""
        slots = {key.slot for key in step.keys}
        absent = tuple(slot for slot in range(self.graph.tasks.tasks) if slot not in slots)
        if not absent or self.options.communicator.ranks.over == "tasks":  # slots are those of all ranks together
            return step
        return replace(step, absent=self.keys(absent))


def begin_step(
    options: StepOptions, losses: inputs.Losses, parameters: inputs.Parameters | None, features: inputs.Features | None,
    domains: Sequence[str] | None, targets: Tensor | None, residuals: inputs.Residuals | None,
) -> LossStep:  # fmt: skip
    """Validate losses, find the leaves that they depend on, and let homogenizers choose tasks.

    Raises:
        OptionError: see `gradhomog.backward`.
        RankError: ranks would choose different tasks.
    """
    options.check_features(features)
    check_closure(options.pipe)
    pipe, communicator = options.pipe, options.communicator
    found = find_graph(losses, parameters, features)
    given = found.tasks
    names = tuple(domains or given.names or ())
    present = given.select_present(names, "domains")
    if found.sharded and communicator.size == 1:  # gradients are DTensors also on one rank
        options = replace(options, communicator=GroupCommunicator(communicator.ranks))
    choosing = bool(pipe.requirements.choosing)
    found = check_present(options, found, choosing)
    if choosing:
        found = found.select(pipe.choose(task_keys(given.slots, present)))
    if parameters is None and communicator.size > 1:
        raise OptionError("across ranks `parameters` is required: each rank could discover others. Pass the module.")
    keeping = pipe.requirements.keeping_rows
    if parameters is None and (options.per != "model" or keeping):
        # Discovered names depend on the order of the losses.
        reason = f"{' and '.join(keeping)} keeps rows" if keeping else "`per` keeps a state"
        raise OptionError(f"{reason} by the parameters' names. Pass the shared module as `parameters`.")
    if options.per != "model":
        inputs.group_names(list(found.shared), options.per)  # raise its errors before computing gradients
    if isinstance(features, inputs.TaskFeatures) and features.domains != names:
        raise OptionError(
            "the views in `features` must have the same domains as the losses: "
            f"{list(names) or 'domains without names'}; got {list(features.domains) or 'domains without names'}. "
            "Pass domains=[...] to task_features in the order of the losses."
        )
    if targets is not None and len(targets) == given.tasks > len(found.tasks.slots):
        targets = targets[list(found.tasks.slots)]
    traces = None if residuals is None else kernel_trace_function(residuals, found, pipe)
    return LossStep(options, found, given, names, targets, traces)


def check_present(options: StepOptions, given: LossGraph, choosing: bool) -> LossGraph:
    """Raise if the step cannot be taken with these losses; return them with the leaves that receive gradients.

    Args:
        choosing: homogenizers choose among the tasks.

    Raises:
        OptionError: a homogenizer acts in the encoder but is not attached: the step would be computed without it. On
            this rank, a loss without examples is not finite, but other ranks wait for its backward pass.
        RankError: on all ranks, not all of them have losses of the same tasks, where this is required.
    """
    requirements, communicator = options.pipe.requirements, options.communicator
    if requirements.attaching and not options.pipe.is_attached:
        attaching = [str(member.selector) for member in requirements.attaching]
        raise OptionError(
            f"{' and '.join(attaching)} must be attached to the encoder, in whose forward pass it acts. "
            "Compute the losses and take the step within `with pipe.attached(encoder):`, or use a learner or "
            "`meta_step(..., encoder=encoder)`."
        )
    if communicator.size > 1 and not communicator.ranks.local and communicator.ranks.over == "batch":
        _agree_on_present(given, choosing, communicator)
    return given.without_inputs() if isinstance(communicator, GroupCommunicator) else given


def _agree_on_present(given: LossGraph, choosing: bool, communicator: Communicator) -> None:
    """Raise unless all ranks have losses of the same tasks, where this is required.

    Homogenizers that choose among the tasks could choose others on a rank on which one is absent. A backward pass with
    collective operations waits for those of the other ranks.
    """
    tasks, same = given.tasks, dict[str, object]()
    if choosing:
        same["tasks to choose from"] = tasks.slots, tasks.names
    if given.sharded or any(map(COLLECTIVE.search, {node.name() for node in given.nodes})):
        same["present tasks"] = tasks.slots
        examples = communicator.examples(tasks.slots)
        for index, (loss, number) in enumerate(zip(tasks.losses, examples, strict=True)):
            if number == 0 and not loss.isfinite():
                raise OptionError(
                    f"the loss of task {tasks.label(index)} must be finite, although its `examples` are 0 on this "
                    "rank, because other ranks wait for its backward pass, through fully_shard, SyncBatchNorm or "
                    f"another collective operation; got {loss.item()}. Pass a loss that depends on the outputs, such "
                    "as 0 * output.sum()."
                )
    if same:
        communicator.agree(len(tasks.slots), {"calls": "losses", **same}, last=False)


def kernel_trace_function(residuals: inputs.Residuals, loss_graph: LossGraph, pipe: Pipeline) -> KernelTraces | None:
    """Return a function that computes the traces when a homogenizer reads them; None if no homogenizer reads them.

    Raises:
        OptionError: the residuals do not match the losses.
    """
    if "kernel_traces" not in pipe.requirements.statistics:
        return None
    present = _residuals_of_present_tasks(residuals, loss_graph.tasks)
    parameters = list(loss_graph.shared.values())
    return lambda probes, generator: torch.stack([
        kernel_trace(residual, parameters, probes, generator, loss_graph.passes) for residual in present
    ])  # fmt: skip


def kernel_trace(
    residuals: Tensor, parameters: Sequence[Tensor], probes: int, generator: torch.Generator,
    passes: BackwardPasses,
) -> Tensor:  # fmt: skip
    """Return tr K / n = 1/n Σ_m ‖∂r_m/∂θ‖² of residuals `[n]`, with K_ml = ⟨∂r_m/∂θ, ∂r_l/∂θ⟩, as a float64 scalar.

    Exact for n ≤ probes: one pass for each residual. Otherwise the mean of ‖∂/∂θ Σ_m ε_m r_m‖² / n over `probes`
    vectors ε of random signs, whose expectation it is (Hutchinson 1989), by one pass for each vector. Its variance is
    2 Σ_{m≠l} K_ml² / (n² · probes). The graph is kept; the result has a graph if gradients are enabled. `passes`: those
    through the graph of the residuals.
    """
    count = residuals.numel()
    if count <= probes:
        vectors, denominator = torch.eye(count, dtype=residuals.dtype, device=residuals.device), count
    else:
        signs = 2 * torch.randint(2, (probes, count), generator=generator) - 1
        vectors, denominator = signs.to(residuals), count * probes
    squares = []
    for vector in vectors:
        gradients = passes.differentiate(
            [residuals], parameters, [vector], retain_graph=True, create_graph=torch.is_grad_enabled()
        )
        parts = [gradient.double().square().sum() for gradient in gradients if gradient is not None]
        squares.append(torch.stack(parts).sum() if parts else residuals.new_zeros((), dtype=torch.float64))
    return torch.stack(squares).sum() / denominator


def _residuals_of_present_tasks(residuals: inputs.Residuals, tasks: inputs.TaskLosses) -> list[Tensor]:
    """Return the residuals of the present tasks, one vector per task."""
    if isinstance(residuals, Tensor) or not isinstance(residuals, Sequence | Mapping):
        raise OptionError(
            "`residuals` must be a sequence or a dict with one tensor per task; got "
            f"{'one tensor' if isinstance(residuals, Tensor) else type(residuals).__name__}."
        )
    if isinstance(residuals, Mapping):
        if tasks.names is None or not set(residuals) <= set(tasks.names):
            raise OptionError(
                f"`residuals` must have the names of the losses ({', '.join(tasks.names or ()) or 'which have none'}); "
                f"got {', '.join(map(str, residuals)) or 'none'}. Pass both as dicts with the same keys."
            )
        entries = [residuals.get(name) for name in tasks.names]
    else:
        entries = list(residuals)
    if len(entries) != tasks.tasks:
        raise OptionError(f"`residuals` must have one tensor for each of the {tasks.tasks} losses; got {len(entries)}.")
    present = []
    for index, slot in enumerate(tasks.slots):
        residual = entries[slot]
        if not isinstance(residual, Tensor) or not residual.is_floating_point() or not residual.requires_grad:
            found = f"{residual.dtype} without a graph" if isinstance(residual, Tensor) else type(residual).__name__
            raise OptionError(
                f"the residuals of task {tasks.label(index)} must be a floating-point tensor with a graph; got "
                f"{found}. Pass the tensor whose mean square is the loss, before it is squared, without detach."
            )
        if residual.numel() == 0:
            raise OptionError(f"the residuals of task {tasks.label(index)} must not be empty.")
        with torch.enable_grad():  # flatten must be part of the graph, also if the caller has disabled gradients
            present.append(residual.flatten())
    return present
