"""The record of one step from losses, made by `backward`, `loss` and `accumulated`, and the checks of its options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gradhomog.autograd.inputs import Losses, Parameters, TaskLosses
from gradhomog.autograd.kernel_traces import Residuals, kernel_trace_function
from gradhomog.autograd.loss_graph import Features, LossGraph, find_graph
from gradhomog.autograd.parameter_groups import Per, group_names
from gradhomog.autograd.task_features import TaskFeatures
from gradhomog.errors import OptionError
from gradhomog.ranks.communicator import Communicator, GroupCommunicator
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.step import KernelTraces, task_keys

Level = Literal["parameters", "features"]
Heads = Literal["own", "weighted"]
Memory = Literal["auto", "rows", "low"]
"""Keep the rows, or compute norms and inner products without them; `"auto"` decides by the free memory."""

COLLECTIVE = re.compile("sync_?batch_?norm|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE)
"""Names of autograd nodes whose backward passes have collective operations."""


@dataclass(frozen=True)
class LossStep:
    """One step from losses.

    Attributes:
        graph: the losses of the tasks in the step, with the leaves that they depend on.
        communicator: the ranks of the step; one process is a group of one rank.
        given: the losses that were passed, before homogenizers chose tasks.
        names: one for each task, or none.
        targets: of the present tasks.
        kernel_traces: computes the traces of the residuals' tangent kernels; None if no homogenizer reads them.
        scaled: True with a gradient scaler. On overflow infinity is then written, so that the scaler skips the step.
        level, per, heads, inspect, memory: as in `gradhomog.backward`.
    """

    pipe: Pipeline
    graph: LossGraph
    communicator: Communicator
    given: TaskLosses
    names: tuple[str, ...] = ()
    targets: Tensor | None = None
    kernel_traces: KernelTraces | None = None
    level: Level = "parameters"
    per: Per = "model"
    heads: Heads = "own"
    inspect: bool = False
    scaled: bool = False
    memory: Memory = "auto"

    @property
    def present_names(self) -> tuple[str, ...]:
        """The names of the tasks in the step, or none."""
        return tuple(self.names[slot] for slot in self.graph.tasks.slots) if self.names else ()

    @property
    def reads_rows(self) -> bool:
        """True if the step requires the rows themselves, not only norms, inner products or a weighted mean."""
        drop = self.pipe.nonfinite == "drop" and not self.scaled
        return drop or self.per != "model" or self.pipe.debug or "jacobian" in self.pipe.requirements.statistics

    @property
    def may_be_unused(self) -> bool:
        """True if the losses need not depend on the shared parameters, because others do, now or in earlier steps."""
        return bool(self.pipe.requirements.choosing) and (self.graph.use_shared or self.pipe.steps > 0)


def begin_step(
    losses: Losses, pipe: Pipeline, communicator: Communicator, *, parameters: Parameters | None,
    features: Features | None, level: Level, per: Per, heads: Heads, domains: Sequence[str] | None,
    targets: Tensor | None, residuals: Residuals | None, inspect: bool, create_graph: bool = False,
    memory: Memory = "auto", scaled: bool = False, graph: bool = True,
) -> LossStep:  # fmt: skip
    """Validate losses and options, find the leaves of the losses, and let homogenizers choose tasks.

    `graph`: False for losses that are only evaluated.

    Raises:
        OptionError: see `gradhomog.backward`.
        RankError: ranks would choose different tasks.
    """
    check_options(pipe, features, level, per, heads, memory, create_graph)
    found = find_graph(losses, parameters, features, graph)
    given, names = found.tasks, tuple(domains or found.tasks.names or ())
    if graph:
        check_attached(pipe)
        found = choose_tasks(pipe, found, names, communicator)
        if found.sharded and communicator.size == 1:  # gradients are DTensors also on one rank
            communicator = GroupCommunicator(communicator.ranks)
        if found.sharded or communicator.size > 1:
            found = found.without_inputs()
    if parameters is None:
        _check_discovered_parameters(pipe, per, communicator)
    if per != "model":
        group_names(list(found.shared), per)  # raise its errors before computing gradients
    if isinstance(features, TaskFeatures) and features.domains != names:
        raise OptionError(
            "the views in `features` must have the same domains as the losses: "
            f"{list(names) or 'domains without names'}; got {list(features.domains) or 'domains without names'}. "
            "Pass domains=[...] to task_features in the order of the losses."
        )
    given.select_present(names, "domains")  # raises if their number differs from that of the tasks
    if targets is not None and len(targets) == given.tasks > len(found.tasks.slots):
        targets = targets[list(found.tasks.slots)]
    traces = kernel_trace_function(residuals, found, pipe, graph)
    return LossStep(
        pipe, found, communicator, given, names, targets, traces, level, per, heads, inspect, scaled, memory
    )


def choose_tasks(pipe: Pipeline, given: LossGraph, names: Sequence[str], communicator: Communicator) -> LossGraph:
    """Return the losses of the tasks that homogenizers choose; the others are then absent from the step.

    `names`: one per task, or none.
    """
    choosing = bool(pipe.requirements.choosing)
    agree_on_present(given, choosing, communicator)
    if not choosing:
        return given
    present = given.tasks.select_present(names, "domains")
    return given.select(pipe.choose(task_keys(given.tasks.slots, present)))


def agree_on_present(given: LossGraph, choosing: bool, communicator: Communicator) -> None:
    """Raise unless all ranks have losses of the same tasks, where this is required.

    Homogenizers that choose among the tasks could choose others on a rank on which one is absent. A backward pass with
    collective operations waits for those of the other ranks.

    Raises:
        OptionError: on this rank, a loss without examples is not finite, but other ranks wait for its backward pass.
        RankError: on all ranks.
    """
    if communicator.size == 1 or communicator.ranks.local or communicator.ranks.over == "tasks":
        return
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


def check_options(
    pipe: Pipeline, features: Features | None = None, level: Level = "parameters", per: Per = "model",
    heads: Heads = "own", memory: Memory = "auto", create_graph: bool = False, features_follow: bool = False,
) -> None:  # fmt: skip
    """Raise for invalid options, and for options without effect or in contradiction.

    `features_follow`: features are passed later, with each batch.

    Raises:
        OptionError: the message names the option.
    """
    if not isinstance(pipe, Pipeline):
        raise OptionError(
            f"`pipe` must be a pipeline; got {pipe!r}. Create it once before the loop: "
            "pipe = gradhomog.pipeline('pcgrad')."
        )
    if level not in ("parameters", "features"):
        raise OptionError(f"`level` must be 'parameters' or 'features'; got {level!r}.")
    if memory not in ("auto", "rows", "low"):
        raise OptionError(f"`memory` must be 'auto', 'rows' or 'low'; got {memory!r}.")
    if heads not in ("own", "weighted"):
        raise OptionError(f"`heads` must be 'own' or 'weighted'; got {heads!r}.")
    requirements = pipe.requirements
    if level == "features" and per != "model":
        raise OptionError(
            f"`per` groups parameters, so it must be 'model' if level='features'; got per={per!r}. Remove `per` or "
            "`level`."
        )
    if level == "features" and requirements.choosing:
        raise OptionError(
            f"{requirements.choosing[0].selector} keeps rows from step to step, but gradients w.r.t. features belong "
            "to the examples of one batch. Use level='parameters'."
        )
    if heads == "weighted" and create_graph:
        raise OptionError("heads='weighted' cannot keep a graph; use heads='own' with create_graph=True.")
    replacing = requirements.replacing_rows
    if heads == "weighted" and (replacing or per != "model"):
        reason = f"{' and '.join(replacing)} replaces rows" if replacing else f"per={per!r} has weights per group"
        raise OptionError(
            "heads='weighted' requires a direction that is a weighted mean of the tasks' gradients, but "
            f"{reason}. Use heads='own'."
        )
    if features_follow:
        return
    reading = requirements.readers["features"]
    if features is None and (level == "features" or reading):
        reason = f"{' and '.join(reading)} reads features" if reading else "level='features' requires features"
        raise OptionError(f"{reason}: pass the output of the shared part of the model as `features`.")
    transforms = [member.selector for member in requirements.transforming]
    if transforms and not isinstance(features, TaskFeatures):
        verb = "transform" if len(transforms) > 1 else "transforms"
        raise OptionError(
            f"{' and '.join(transforms)} {verb} the input of the heads. Create it by "
            "views = gradhomog.task_features(z, pipe, tasks=N), pass views[i] to head i, and pass features=views here."
        )


def check_attached(pipe: Pipeline) -> None:
    """Raise if a homogenizer acts in the encoder but is not attached: the step would be computed without it.

    Raises:
        OptionError: the message names the homogenizer.
    """
    if pipe.requirements.attaching and not pipe.is_attached:
        attaching = [str(member.selector) for member in pipe.requirements.attaching]
        raise OptionError(
            f"{' and '.join(attaching)} must be attached to the encoder, in whose forward pass it acts. "
            "Compute the losses and take the step within `with pipe.attached(encoder):`, or use a learner or "
            "`meta_step(..., encoder=encoder)`."
        )


def _check_discovered_parameters(pipe: Pipeline, per: Per, communicator: Communicator) -> None:
    """Raise for state by parameter name without `parameters`: discovered names depend on the order of the losses.

    Raises:
        OptionError: a homogenizer keeps rows, `per` keeps a state per group, or ranks exchange rows.
    """
    if communicator.size > 1:
        raise OptionError("across ranks `parameters` is required: each rank could discover others. Pass the module.")
    keeping = pipe.requirements.keeping_rows
    if per != "model" or keeping:
        reason = f"{' and '.join(keeping)} keeps rows" if keeping else "`per` keeps a state"
        raise OptionError(f"{reason} by the parameters' names. Pass the shared module as `parameters`.")
