"""The arguments of a step in the forms that training loops pass, and the validation of losses and tensors."""

import fnmatch
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gradhomog.errors import OptionError
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.step import task_keys


class TaskFeatures:
    """Shared features `[batch, features]` and their transformed views, one per task.

    `views[i]` is the input of the head of task i. Pass the object to `gradhomog.backward(..., features=views)`.
    """

    def __init__(
        self, features: Tensor, stage_features: Sequence[Sequence[Tensor]], domains: tuple[str, ...] = ()
    ) -> None:
        self.features, self.stage_features, self.domains = features, stage_features, domains

    def __len__(self) -> int:
        return len(self.stage_features)

    def __getitem__(self, task: int) -> Tensor:
        return self.stage_features[operator.index(task)][-1][0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[task] for task in range(len(self)))


def task_features(features: Tensor, pipe: Pipeline, tasks: int, domains: Sequence[str] | None = None) -> TaskFeatures:
    """Return each task's view of shared features, z_i = T_i z, by the `transform` stages of a pipeline.

    The views are the inputs of the heads. Only pipelines that transform features (`rotograd`, `rotate`, `rotogbml`)
    require them; for others the views are equal to the features.

    Args:
        features: z, `[batch, features]`, with its graph.
        pipe: the pipeline whose `transform` stages are applied, in order.
        tasks: N.
        domains: one name per task, as passed to `backward`, for state by domain.

    Returns:
        N tensors `[batch, features]`, differentiable in the features.

    Raises:
        OptionError: the features have another shape, or the number of domains differs from the number of tasks.

    >>> import torch, gradhomog
    >>> encoder, heads = torch.nn.Linear(3, 4), [torch.nn.Linear(4, 1) for _ in range(2)]
    >>> pipe = gradhomog.pipeline("rotograd")
    >>> views = gradhomog.task_features(encoder(torch.ones(5, 3)), pipe, tasks=2)
    >>> losses = [head(view).square().mean() for head, view in zip(heads, views)]
    >>> _ = gradhomog.backward(losses, pipe, parameters=encoder, features=views)
    >>> encoder.weight.grad.shape
    torch.Size([4, 3])
    """
    if not isinstance(pipe, Pipeline):
        raise OptionError(f"`pipe` must be a pipeline; got {pipe!r}. Create it by gradhomog.pipeline('rotograd').")
    if not isinstance(features, Tensor):
        raise OptionError(f"`features` must be a tensor [batch, features]; got {type(features).__name__}.")
    if features.dim() != 2:
        raise OptionError(
            f"`features` must have shape [batch, features]; got {tuple(features.shape)}. Flatten feature maps first."
        )
    names = tuple(domains or ())
    stage_features = [pipe.transform(features[None], [key]) for key in task_keys(range(tasks), names)]
    return TaskFeatures(features, stage_features, names)


Losses = Tensor | Sequence[Tensor | None] | Mapping[str, Tensor | None]
"""One scalar per task: a tensor `[tasks]`, a sequence, or a dict by the tasks' names; None for an absent task."""

Parameters = nn.Module | Mapping[str, Tensor] | Iterable[Tensor] | Iterable[tuple[str, Tensor]]
"""A module, a dict of tensors by name, or the result of `parameters()` or `named_parameters()`."""

Features = Tensor | Sequence[Tensor] | TaskFeatures
"""The output of the shared part, one tensor or several, or its views for each task."""

Residuals = Sequence[Tensor | None] | Mapping[str, Tensor | None]
"""One tensor of any shape per task, whose mean square is the loss: a sequence, or a dict by the tasks' names."""

Measure = str | Tensor | Sequence[Tensor]
"""Tensors w.r.t. which gradients are measured, or a glob pattern over names of shared parameters."""

Level = Literal["parameters", "features"]
Heads = Literal["own", "weighted"]
Reduction = Literal["mean", "sum"]
Memory = Literal["auto", "rows", "low"]
"""Keep the rows, or compute norms and inner products without them; `"auto"` decides by the free memory."""


@dataclass(frozen=True)
class TaskLosses:
    """The losses of the tasks that are present in a step.

    Attributes:
        losses: one scalar with a graph for each present task.
        slots: the positions of these tasks in the batch.
        tasks: N, the number of tasks, including absent ones.
        names: the names of all tasks, or None.
        stacked: True if separate losses were stacked into one tensor: each then depends on all leaves of all losses.
    """

    losses: list[Tensor]
    slots: tuple[int, ...]
    tasks: int
    names: tuple[str, ...] | None
    stacked: bool

    def label(self, index: int) -> str:
        """Return the name of a present task for error messages."""
        slot = self.slots[index]
        return self.names[slot] if self.names else str(slot)

    def select_present(self, values: Sequence[str] | None, option: str) -> tuple[str, ...]:
        """Select the entries of the present tasks from one entry per task; empty if there are no entries.

        Raises:
            OptionError: the number of entries is neither the number of tasks nor zero.
        """
        if not values:
            return ()
        if len(values) != self.tasks:
            raise OptionError(
                f"`{option}` must contain one name for each of the {self.tasks} tasks; got {list(values)}."
            )
        return tuple(values[slot] for slot in self.slots)


def task_losses(values: Losses, graph: bool = True) -> TaskLosses:
    """Validate the losses of one step and return those of the present tasks.

    A task is absent if its loss is None or, with `graph`, a constant (a tensor that does not require grad). Without
    `graph` the losses are only evaluated.

    Raises:
        OptionError: no task is present; a loss is not a real scalar tensor.
    """
    names = tuple(values) if isinstance(values, Mapping) else None
    entries = _losses_by_slot(values)
    for slot, loss in enumerate(entries):
        if loss is not None:
            _check_loss(names[slot] if names else slot, loss)
    slots = [slot for slot, loss in enumerate(entries) if loss is not None and (loss.requires_grad or not graph)]
    if all(loss is None for loss in entries):
        raise OptionError(
            f"all {len(entries)} losses are None: no task has labels in this batch. Skip the batch; across ranks pass "
            "losses such as 0 * output.sum(), and `examples` of 0."
        )
    if not slots:
        raise OptionError(
            "at least one loss must have a graph; got none. Compute the losses from the model's outputs, without "
            "torch.no_grad, detach or item."
        )
    stacked = isinstance(values, Tensor) and type(values.grad_fn).__name__ in ("StackBackward0", "CatBackward0")
    with torch.enable_grad():
        losses = [entries[slot] if entries[slot].dim() == 0 else entries[slot].reshape(()) for slot in slots]
    return TaskLosses(losses, tuple(slots), len(entries), names, stacked)


def _losses_by_slot(values: Losses) -> list[Any]:
    scalar = isinstance(values, Tensor) and values.dim() == 0
    if scalar or not isinstance(values, Tensor | Sequence | Mapping):
        found = "one scalar" if scalar else type(values).__name__
        advice = " Pass the dict itself, whose keys are the tasks' names." if isinstance(values, ValuesView) else ""
        raise OptionError(
            f"`losses` must be a sequence, a dict or a vector with one loss per task; got {found}.{advice}"
        )
    with torch.enable_grad():  # keeps the graph of each entry, even if the caller has disabled gradients
        entries = list(values.values()) if isinstance(values, Mapping) else list(values)
    if not entries:
        raise OptionError("`losses` must contain one loss per task; got none.")
    return entries


def _check_loss(task: object, loss: object) -> None:
    if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
        return
    found, advice = type(loss).__name__, "Pass the loss as a tensor."
    if isinstance(loss, Tensor):
        found, advice = f"shape {tuple(loss.shape)}, {loss.dtype}", "Take the mean over its examples."
    elif isinstance(loss, float):
        advice = "Pass the loss as a tensor, not as a number (`.item()`)."
    number = loss.item() if isinstance(loss, Tensor) and loss.numel() == 1 else loss
    if isinstance(number, int) and number == 0:
        advice = "If the task is absent from this batch, pass None."
    raise OptionError(f"the loss of task {task} must be a real scalar tensor; got {found}. {advice}")


def shared_parameters(parameters: Parameters) -> dict[str, Tensor]:
    """Return the tensors that require grad, by name, each once; tensors without names are numbered from `"0"`.

    Raises:
        OptionError: no tensor requires grad; an entry is not a tensor; two tensors have the same name.
    """
    named = _named_tensors(parameters)
    found: dict[str, Tensor] = {}
    known: set[int] = set()
    for name, tensor in named:
        if not isinstance(tensor, Tensor):
            raise OptionError(f"`parameters` must contain tensors; {name!r} is {type(tensor).__name__}.")
        if not tensor.requires_grad or id(tensor) in known:
            continue
        if name in found:
            raise OptionError(
                f"`parameters` must have unique names; got two tensors with the name {name!r}, of shapes "
                f"{tuple(found[name].shape)} and {tuple(tensor.shape)}. Put their modules into one (nn.ModuleList), or "
                "pass tensors without names."
            )
        known.add(id(tensor))
        found[name] = tensor
    if not named:
        raise OptionError(
            "`parameters` is empty. An iterator such as module.parameters() is exhausted after one step: pass the "
            "module or a list."
        )
    if not found:
        raise OptionError(
            f"`parameters` must contain a tensor that requires grad; got {len(named)} that do not. Is the shared part "
            "frozen?"
        )
    return found


def _named_tensors(parameters: Parameters) -> list[tuple[str, Any]]:
    if isinstance(parameters, Tensor) or not isinstance(parameters, nn.Module | Iterable):
        optimizer = isinstance(parameters, torch.optim.Optimizer)
        raise OptionError(
            "`parameters` must be a module, its parameters() or named_parameters(), or a list or dict of tensors; got "
            f"{'one tensor' if isinstance(parameters, Tensor) else type(parameters).__name__}. Pass the module whose "
            "gradients are shared, such as the encoder."
            f"{' An optimizer also has the parameters of heads, and no names.' if optimizer else ''}"
        )
    entries: Iterable[Any] = parameters.named_parameters() if isinstance(parameters, nn.Module) else parameters
    if isinstance(parameters, Mapping):
        entries = parameters.items()
    return [entry if isinstance(entry, tuple) else (str(index), entry) for index, entry in enumerate(entries)]


def feature_tensors(features: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """Return the feature tensors, each once.

    Raises:
        OptionError: there is none; an entry is not a tensor, or does not require grad.
    """
    tensors: list[Any] = [*features] if isinstance(features, list | tuple) else [features]
    for tensor in tensors or [features]:
        if not isinstance(tensor, Tensor) or not tensor.requires_grad:
            kind = f"{'' if tensors else 'an empty '}{type(tensor).__name__}"
            found = "a tensor that does not require grad" if isinstance(tensor, Tensor) else kind
            raise OptionError(
                "`features` must be the output of the shared part of the model, with its graph: a tensor, a sequence "
                f"of tensors or the result of task_features; got {found}. Omit "
                "`features` if the shared part is frozen."
            )
    return list({id(tensor): tensor for tensor in tensors}.values())


Per = Literal["model", "layer", "tensor"] | Mapping[str, str]
"""All parameters together, the parameters of each module, each tensor, or groups by glob patterns over names."""


def group_names(names: Sequence[str], per: Per) -> dict[str, list[str]]:
    """Return the parameters' names by group, in order; every parameter is in exactly one group.

    Raises:
        OptionError: a pattern matches no parameter, a parameter matches no pattern, or `per` has an invalid value.
    """
    if isinstance(per, Mapping):
        return _by_pattern(names, per)
    if per == "model":
        return {"": list(names)}
    if per not in ("layer", "tensor"):
        raise OptionError(f"`per` must be 'model', 'layer', 'tensor' or a dict of glob patterns by group; got {per!r}.")
    groups: dict[str, list[str]] = {}
    for name in names:
        if per == "layer" and name.isdigit():
            raise OptionError(
                "per='layer' groups parameters by the names of their modules; got the names '0', '1', … of a list. Use "
                "per='tensor', or pass a module with named parameters."
            )
        # `conv.weight` and `conv.bias` are one layer; a parameter of the outermost module is a separate layer.
        groups.setdefault(name.rpartition(".")[0] or name if per == "layer" else name, []).append(name)
    return groups


def _by_pattern(names: Sequence[str], patterns: Mapping[str, str]) -> dict[str, list[str]]:
    if wrong := [entry for pair in patterns.items() for entry in pair if not isinstance(entry, str)]:
        raise OptionError(f"`per` must map names of groups to patterns, all of them strings; got {wrong[0]!r}.")
    groups: dict[str, list[str]] = {group: [] for group in patterns}
    for name in names:
        for group, pattern in patterns.items():
            if fnmatch.fnmatchcase(name, pattern):
                groups[group].append(name)
                break
        else:
            raise OptionError(
                f"`per` must have a pattern for every shared parameter; {name!r} matches none of {dict(patterns)}."
            )
    if empty := [group for group, members in groups.items() if not members]:
        raise OptionError(
            f"pattern {patterns[empty[0]]!r} of group {empty[0]!r} in `per` selects no parameter: it matches none, or "
            f"only parameters that an earlier pattern matches. Parameters: {', '.join(names[:6])}"
            f"{', …' if len(names) > 6 else ''}."
        )
    return groups


def measured_tensors(measure: Measure, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of `measure`, by name for a pattern, otherwise by position.

    Raises:
        OptionError: no parameter matches; a tensor has no graph; something else than tensors.
    """
    found: dict[str, Any] = {}
    if isinstance(measure, str):
        found = {name: value for name, value in shared.items() if fnmatch.fnmatchcase(name, measure)}
    else:
        several = isinstance(measure, Iterable) and not isinstance(measure, Tensor)
        found = {str(index): one for index, one in enumerate(measure if several else [measure])}
    wrong = [one for one in found.values() if not (isinstance(one, Tensor) and one.requires_grad)]
    if not found or wrong:
        got = repr(measure) if isinstance(measure, str) else "none"
        if wrong:
            got = "a tensor without a graph" if isinstance(wrong[0], Tensor) else f"{type(wrong[0]).__name__}"
        raise OptionError(
            "`measure` must be tensors that the losses depend on, or a glob pattern over names of shared parameters: "
            f"{', '.join(list(shared)[-6:])}; got {got}."
        )
    return found
