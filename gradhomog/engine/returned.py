"""What each stage has to return: functions that say what was expected of a result that does not fit, else nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TypeGuard

import torch
from torch import Tensor

from gradhomog.rows import Rows

NO_GRAPH = "outside the graph, as create_graph was not asked for"


def features(found: object, given: Tensor) -> str:
    """Of `transform`. NaN is looked for by the step that meets it: here it would cost a pass for every task."""
    if not _dense(found) or not _alike(found, given):
        return f"features of shape {tuple(given.shape)}, {given.dtype} on {given.device}"
    if given.requires_grad and torch.is_grad_enabled() and not found.requires_grad:
        return "features that depend on those it was given, or the encoder learns nothing"
    return ""


def mixing(found: object, tasks: int) -> str:
    """Of `mix`; NaN and infinity are the caller's to find."""
    if not _dense(found) or found.is_complex() or found.shape not in ((tasks,), (tasks, tasks)):
        return f"weights of shape [{tasks}] or a matrix [{tasks}, {tasks}]"
    return f"a tensor {NO_GRAPH}" if found.requires_grad and not torch.is_grad_enabled() else ""


def rows(found: object, given: Rows) -> str:
    """Of `rows`; NaN and infinity are the caller's to find."""
    pairs = [(found, given)] if isinstance(given, Tensor) else []
    if isinstance(given, Mapping):
        if not isinstance(found, Mapping) or set(found) != set(given):
            return f"rows by the names that it was given, {', '.join(given)}"
        pairs = [(found[name], value) for name, value in given.items()]
    for value, like in pairs:
        if not _dense(value) or not _alike(value, like):
            return "rows of the structure, shapes, dtypes and device that it was given"
        if value.requires_grad and not torch.is_grad_enabled():
            return f"rows {NO_GRAPH}"
    return ""


def measured(found: object) -> str:
    """Of `measured`: what a record can hold."""
    if isinstance(found, Mapping) and all(isinstance(name, str) and _numbers(value) for name, value in found.items()):
        return ""
    return "numbers, or lists of numbers, by name"


def maps(found: object, inputs: Tensor) -> str:
    """Of `maps`."""
    if isinstance(found, Mapping) and all(
        _dense(value) and value.dim() > 0 and len(value) == len(inputs) for value in found.values()
    ):
        return ""
    return f"one map for each of {len(inputs)} inputs, as tensors by name"


def description(found: object) -> str:
    """What was returned, in words."""
    if isinstance(found, Tensor):
        graph = " with a graph" if found.requires_grad else ""
        return f"a tensor {tuple(found.shape)} {found.dtype} on {found.device}{graph}"
    if isinstance(found, Mapping):
        return f"a dict of {{{', '.join(f'{name!r}: {description(value)}' for name, value in found.items())}}}"
    return type(found).__name__


def _dense(found: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor with values in memory: neither sparse nor on the device `meta`."""
    return isinstance(found, Tensor) and found.layout == torch.strided and not found.is_meta


def _alike(found: Tensor, given: Tensor) -> bool:
    return (found.shape, found.dtype, found.device) == (given.shape, given.dtype, given.device)


def _numbers(value: object) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(isinstance(item, Real) for item in value)
    return isinstance(value, Real)
