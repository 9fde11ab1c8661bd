"""Shared parts of the adapters of frameworks that train with the sum of several losses."""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradhomog
from gradhomog import OptionError, Pipeline, Ranks, StepReport
from gradhomog_adapters._gradients import graph_nodes

UNIT = 2.0**10
"""The unit of numbers of examples or tokens. They multiply losses, and large ones overflow half precision."""


def check_pipeline(pipe: Pipeline, framework: str) -> None:
    """Raise unless losses and rows are sufficient: the framework passes on no features and no residuals.

    Raises:
        OptionError: the message names the homogenizer.
    """
    require_pipeline(pipe)
    requirements = pipe.requirements
    reading_features = [member.selector for member in requirements.transforming] + requirements.readers["features"]
    for names, read in (
        (reading_features, f"reads features, which {framework} does not compute"),
        (requirements.readers["kernel_traces"], f"reads residuals, which {framework} does not pass on"),
    ):
        if names:
            raise OptionError(
                "`pipe` must require losses and gradients of parameters only, but "
                f"{' and '.join(dict.fromkeys(names))} {read}. Choose another homogenizer: `gradhomog list`."
            )


def require_pipeline(pipe: Pipeline) -> None:
    """Raise unless `pipe` is a pipeline."""
    if not isinstance(pipe, Pipeline):
        raise OptionError(
            f"`pipe` must be a pipeline, created once before training, as gradhomog.pipeline('pcgrad'); got {pipe!r}."
        )


def line_search_error(owner: str, optimizer: str, advice: str) -> OptionError:
    """Return the error for an optimizer that evaluates the loss several times in a step."""
    return OptionError(
        f"{owner} must train with a first-order optimizer such as Adam; got {optimizer}, whose line search and "
        f"curvature require the gradient of one fixed loss. {advice}"
    )


def batch_ranks(group: Any, default: Ranks | None) -> Ranks | None:
    """Return the ranks over which a batch is distributed: `group` or, if it is None, those of the trainer.

    Raises:
        OptionError: `group` distributes tasks.
    """
    ranks = default if group is None else group if isinstance(group, Ranks) else Ranks("batch", group)
    if ranks is not None and ranks.over != "batch":
        raise OptionError(
            f"a trainer distributes the examples of a batch: `group` must be Ranks('batch', ...); got {ranks!r}. For "
            "different tasks on each rank, use gradhomog.backward in your own loop."
        )
    return ranks


def count_examples(
    losses: Mapping[str, Tensor | None], examples: Mapping[str, Any] | None, group: Any, trainer: Ranks | None
) -> tuple[Mapping[str, Tensor | None], Ranks | None]:
    """Return the losses of tasks with examples, and the ranks with the number of examples of each task.

    Raises:
        OptionError: `examples` has other tasks than `losses`, or `group` has numbers without names; see `batch_ranks`.
    """
    ranks = batch_ranks(group, trainer)
    if ranks is not None and ranks.examples is not None:
        raise OptionError(f"the numbers of examples must have names, examples={{'task': 8}}; got group={ranks!r}.")
    if examples is None:
        return losses, ranks
    if examples.keys() != losses.keys():
        raise OptionError(f"`examples` must have the keys of `losses`, {[*losses]}; got {[*examples]}.")
    present = {name: loss if examples[name] else None for name, loss in losses.items()}
    numbers = [float(examples[name]) / UNIT for name in losses]
    return present, replace(ranks or Ranks("batch"), examples=numbers)


def check_loss_options(options: Iterable[str], owner: str, fixed: Collection[str] = ()) -> None:
    """Raise OptionError unless all names are arguments of `gradhomog.loss` that a user of the adapter may pass."""
    known = inspect.signature(gradhomog.loss).parameters.keys() - {"losses", "pipe", "report", *fixed}
    if unknown := sorted(set(options) - known):
        raise OptionError(f"{owner} arguments of gradhomog.loss; got {', '.join(unknown)}.")


class ReceivesReports:
    """An adapter with the report of its last step."""

    report: StepReport | None = None

    def _receive(self, result: StepReport) -> None:
        """Store a report without the direction, which would occupy the memory of a gradient."""
        self.report = replace(result, direction={})

    def _weights(self) -> dict[str, float]:
        """The last step's weights by the name of the loss; empty before the first, and if rows were replaced."""
        if self.report is None or self.report.weights is None:
            return {}
        return dict(zip(self.report.names, self.report.weights.tolist(), strict=True))


class SavesPipeline(ReceivesReports):
    """A callback of Lightning whose state in checkpoints is that of its pipeline."""

    pipe: Pipeline

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the pipeline, for Lightning's checkpoints."""
        return self.pipe.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace the state of the pipeline by the state in a checkpoint."""
        self.pipe.load_state_dict(state_dict)


class ZeroLosses:
    """Losses of zero for tasks without labels on a rank, because ranks sum the gradients of their heads."""

    def __init__(self) -> None:
        self._heads: dict[Any, list[str]] = {}

    def total(
        self, losses: Any, model: Any, pipe: Pipeline, trainer: Ranks | None, *,
        loss: Callable[..., Tensor] = gradhomog.loss, **options: Any,
    ) -> Tensor:  # fmt: skip
        """Return the `loss` of a batch that the ranks of a trainer share, as a function of all parameters."""
        module = model.module if isinstance(model, DistributedDataParallel) else model
        ranks = batch_ranks(options.pop("group", None), trainer)
        losses, ranks = self.fill(losses, module, options["parameters"], pipe, ranks)
        return use_all_parameters(loss(losses, pipe, group=ranks, **options), model)

    def fill(
        self, losses: Any, module: nn.Module, parameters: Any, pipe: Pipeline, ranks: Ranks | None
    ) -> tuple[Any, Ranks | None]:
        """Replace each None by 0 · Σ of the parameters of the task's head, with 0 examples; add it to other losses.

        Then the graphs of a task lead to the parameters of its head in the same order on all ranks.

        The heads are the parameters that a task's loss depends on and that are not shared. Until each task has had a
        loss on a rank, the ranks exchange their names in each call. Homogenizers that choose among the tasks with
        labels receive None.
        """
        if ranks is None or ranks.size == 1 or ranks.local or pipe.requirements.choosing or isinstance(losses, Tensor):
            return losses, ranks
        if parameters is None or not torch.is_grad_enabled():
            return losses, ranks
        entries = dict(losses) if isinstance(losses, Mapping) else dict(enumerate(losses))
        named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        if entries.keys() - self._heads.keys():
            self._exchange_heads(entries, named, parameters, ranks)
        given: Any = 1.0 if ranks.examples is None else ranks.examples
        numbers = [given] * len(entries) if isinstance(given, int | float) else given
        missing = [key for key, loss in entries.items() if loss is None and key in self._heads]
        examples = [0.0 if key in missing else number for key, number in zip(entries, numbers, strict=True)]
        for key in entries.keys() & self._heads.keys():
            if key not in missing and not self._heads[key]:
                continue
            names = self._heads[key] or list(named)[:1]
            zero = torch.stack([0 * named[name].sum() for name in names]).sum()
            # The graph is traversed from the last term.
            entries[key] = zero if key in missing else entries[key] + zero
        return (entries if isinstance(losses, Mapping) else list(entries.values())), replace(ranks, examples=examples)

    def _exchange_heads(
        self, losses: Mapping[Any, Any], named: Mapping[str, Tensor], parameters: Any, ranks: Ranks
    ) -> None:
        shared = parameters.parameters() if isinstance(parameters, nn.Module) else parameters
        shared = shared.values() if isinstance(shared, Mapping) else shared
        not_heads = {id(entry[1] if isinstance(entry, tuple) else entry) for entry in shared}
        found = {}
        for key, loss in losses.items():
            if isinstance(loss, Tensor):
                nodes = graph_nodes(loss.grad_fn)
                used = {id(node.variable) for node in nodes if node.name() == "torch::autograd::AccumulateGrad"}
                found[key] = [name for name, parameter in named.items() if id(parameter) in used - not_heads]
        of_ranks: list[Any] = [None] * ranks.size
        dist.all_gather_object(of_ranks, found, group=ranks.group)
        for heads in of_ranks:
            self._heads.update(heads)


def use_all_parameters(total: Tensor, model: Any) -> Tensor:
    """Return a loss that depends on all parameters of a DistributedDataParallel model, which waits for each of them.

    Parameters of a head without labels have no gradient from this rank. The model then writes the mean over the ranks,
    which is zero if no rank has one.
    """
    if not isinstance(model, DistributedDataParallel) or model.find_unused_parameters or not total.requires_grad:
        return total
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    result: Tensor = FunctionOfAll.apply(total, *parameters)  # type: ignore[no-untyped-call]
    return result


class FunctionOfAll(torch.autograd.Function):
    """The identity on the first argument, as a function of all; the gradients of the others are undefined."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, *parameters: Tensor) -> Tensor:
        ctx.count = len(parameters)
        return total.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (grad, *[None] * ctx.count)


class RunningMeans:
    """Weighted means of values by name. Tensors stay on their device until `pop`, which synchronizes."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[Tensor | float, Tensor | float]] = {}  # of weighted values, and of weights

    def add(self, name: str, value: Tensor | float, weight: Tensor | float = 1.0) -> None:
        """Add a value to the mean of its name."""
        value = value.detach().double() if isinstance(value, Tensor) else value
        before = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = before[0] + weight * value, before[1] + weight

    def pop(self, ranks: Ranks | None = None) -> dict[str, float]:
        """Return the means, and begin new ones; with several ranks those over the values of all, the same on each."""
        values = {name: (float(total), float(weight)) for name, (total, weight) in self._sums.items()}
        self._sums = {}
        parts = [values] * (1 if ranks is None else ranks.size)
        if len(parts) > 1:
            dist.all_gather_object(parts, values)  # names may differ: a task can be absent on a rank
        by_name = {name: [part[name] for part in parts if name in part] for name in dict.fromkeys(chain(*parts))}
        return {
            name: sum(total for total, _ in pairs) / sum(weight for _, weight in pairs)
            for name, pairs in by_name.items()
        }
