"""Validate the results of a plugin's stages, by functions that return the violated requirement, or ""; copies of its
inputs for the debug check that it does not modify them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypeGuard

import torch
from torch import Tensor

from gradhomog.errors import PluginRunError
from gradhomog.rows import DenseJacobian, Jacobian
from gradhomog.step.step import Step

NO_GRAPH = "outside the graph, since create_graph=False"


def features(found: object, given: Tensor) -> str:
    """Validate the result of `transform`, except for NaN, which `nonfinite` finds later with fewer reads."""
    if not _dense(found) or not _alike(found, given):
        return f"features of shape {tuple(given.shape)}, {given.dtype} on {given.device}"
    if given.requires_grad and torch.is_grad_enabled() and not found.requires_grad:
        return "features with a graph to its input, or the encoder receives no gradient"
    return ""


def choice(found: object, tasks: int) -> str:
    """Validate the result of `choose`."""
    positions = list(found) if isinstance(found, Sequence) else []
    if positions and len(set(positions)) == len(positions) and all(position in range(tasks) for position in positions):
        return ""
    return f"at least one of the positions 0 to {tasks - 1}, each once"


def mixing(found: object, tasks: int) -> str:
    """Validate the result of `mix`."""
    if (
        not isinstance(found, Tensor)
        or found.layout != torch.strided
        or found.is_meta
        or found.is_complex()
        or found.shape not in ((tasks,), (tasks, tasks))
    ):
        return f"weights of shape [{tasks}] or a matrix [{tasks}, {tasks}]"
    return f"a tensor {NO_GRAPH}" if found.requires_grad and not torch.is_grad_enabled() else ""


def rows(found: object, given: Jacobian) -> str:
    """Validate the result of `rows`."""
    if not isinstance(found, Jacobian):
        return "a Jacobian, created by `map`, `replace` or `repeat` of step.jacobian"
    if found.names != given.names or found.tasks != given.tasks:
        return f"a Jacobian of {given.tasks} tasks with the blocks {', '.join(map(repr, given.names))}"
    pairs = zip(found.row_like().values(), given.row_like().values(), strict=True)
    blocks = found.blocks.values() if isinstance(found, DenseJacobian) else []
    if not all(_dense(row) and _alike(row, like) for row, like in pairs) or any(len(b) != given.tasks for b in blocks):
        return "a Jacobian with the shapes, dtypes and device of step.jacobian"
    return ""


def state(found: object, names: Sequence[str]) -> str:
    """Validate the result of `update`."""
    if not isinstance(found, Mapping):
        return "a dict with new values of `state_names`, without changing `self`"
    if unknown := [name for name in found if name not in names]:
        return f"only keys in `state_names` ({', '.join(names) or 'empty'}), which {unknown[0]!r} is not"
    return ""


def numbers_finite(found: object) -> bool:
    """True if all numbers in nested dicts and lists are finite; tensors are not read."""
    if isinstance(found, Mapping):
        return all(map(numbers_finite, found.values()))
    if isinstance(found, (list, tuple)):
        return all(map(numbers_finite, found))
    return not isinstance(found, float) or math.isfinite(found)


def measured(found: object) -> str:
    """Validate the result of `measured`: it must be serializable in a record."""
    if isinstance(found, Mapping) and all(isinstance(name, str) and _numbers(value) for name, value in found.items()):
        return ""
    return "numbers, or lists of numbers, by name"


def maps(found: object, inputs: Tensor) -> str:
    """Validate the result of `maps`."""
    if isinstance(found, Mapping) and all(
        _dense(value) and value.dim() > 0 and len(value) == len(inputs) for value in found.values()
    ):
        return ""
    return f"one map for each of {len(inputs)} inputs, as tensors by name"


def describe(found: object) -> str:
    """Describe a value for an error message."""
    if isinstance(found, Tensor):
        graph = " with a graph" if found.requires_grad else ""
        return f"a tensor {tuple(found.shape)} {found.dtype} on {found.device}{graph}"
    if isinstance(found, Jacobian):
        return f"a Jacobian of {found.tasks} tasks, {found.dtype}, with blocks {', '.join(map(repr, found.names))}"
    if isinstance(found, Mapping):
        return f"a dict of {{{', '.join(f'{name!r}: {describe(value)}' for name, value in found.items())}}}"
    return type(found).__name__


def _dense(found: object) -> TypeGuard[Tensor]:
    """True for a tensor with values in memory: neither sparse nor on the device `meta`."""
    return isinstance(found, Tensor) and found.layout == torch.strided and not found.is_meta


def _alike(found: Tensor, given: Tensor) -> bool:
    return (found.shape, found.dtype, found.device) == (given.shape, given.dtype, given.device)


def _numbers(value: object) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(isinstance(item, Real) for item in value)
    return isinstance(value, Real)


class InputCopies:
    """Copies of a stage's inputs, compared after the stage; also detects writes through `.data` and NumPy."""

    def __init__(self, step: Step) -> None:
        rows = step._jacobian
        found: dict[str, Tensor | None] = {
            **{f"jacobian {name}".strip(): value for name, value in rows.materialize().items()},
            "gramian": rows.total_gramian, "norms": rows.total_squared_norms, "losses": step._losses,
            **{f"features {index}": tensor for index, tensor in enumerate(step._features)},
            **{f"feature_grads {index}": tensor for index, tensor in enumerate(step._feature_grads)},
            "targets": step._targets,
        }  # fmt: skip
        self._read = {name: tensor for name, tensor in found.items() if tensor is not None}
        self._copies = {name: tensor.detach().clone() for name, tensor in self._read.items()}

    def require_unmodified(self, member: Any, stage: str | None) -> None:
        """Raise if a tensor has changed.

        Raises:
            PluginRunError: the message names the member, its stage and the tensor.
        """
        for name, copy in self._copies.items():
            if not torch.allclose(self._read[name].detach(), copy, rtol=0, atol=0, equal_nan=True):
                raise PluginRunError(
                    f"{member} modified `{name}` in place in `{stage}`, but other stages and the caller read the same "
                    f"memory. It must modify a copy, made by `clone()`. {member.advice}"
                )
