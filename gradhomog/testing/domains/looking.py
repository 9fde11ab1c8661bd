"""A drawn task, looked at: whether it is what was asked for, and whether it is another one."""

from __future__ import annotations

from collections.abc import Set

import torch
from torch import Tensor

from gradhomog.domains import Domain
from gradhomog.tasks import Task
from gradhomog.testing.checking import CheckFailure
from gradhomog.testing.domains.subject import Numbers

PARTS = ("support", "query")
TENSORS = ("support_x", "support_y", "query_x", "query_y")


def judge_inputs(task: Task, domain: Domain, numbers: Numbers) -> None:
    """Raise unless the inputs are finite float32 of the domain's shape, as many as asked; images in [−1, 1]."""
    if not isinstance(task, Task):
        raise CheckFailure(f"`sample` returns a {type(task).__name__}; expected a gradhomog.Task")
    ways = numbers["ways"] if domain.outputs is None else 1
    for part, count in _counts(numbers):
        x, name = getattr(task, f"{part}_x"), f"`{part}_x`"
        _judge_tensor(name, x, torch.float32, (ways * count, *domain.input_shape))
        if len(domain.input_shape) == 3 and not -1 <= float(x.min()) <= float(x.max()) <= 1:
            raise CheckFailure(f"{name}: pixels from {float(x.min()):.4g} to {float(x.max()):.4g}; expected [-1, 1]")


def judge_targets(task: Task, domain: Domain, numbers: Numbers) -> None:
    """Raise unless there are as many int64 labels of each class as asked for, or float32 targets of each point."""
    for part, count in _counts(numbers):
        y, name, ways = getattr(task, f"{part}_y"), f"`{part}_y`", numbers["ways"]
        if domain.outputs is not None:
            _judge_tensor(name, y, torch.float32, (count, domain.outputs))
            continue
        _judge_tensor(name, y, torch.int64, (ways * count,))
        outside = bool(((y < 0) | (y >= ways)).any())
        if outside or torch.bincount(y, minlength=ways).tolist() != [count] * ways:
            raise CheckFailure(f"{name}: labels {y.tolist()}; expected {count} of each of 0..{ways - 1}")


def judge_classes(task: Task, told: Set[int], numbers: Numbers) -> None:
    """Raise unless a task tells of which classes it is, if the domain tells its own: different ones of it."""
    if task.classes is None or not told:
        if (task.classes is None) != (not told):
            one, other = ("`classes(split)`", "tasks") if told else ("tasks", "`classes(split)`")
            raise CheckFailure(f"{one} tell classes, {other} do not; learners that classify all of them need both")
        return
    _judge_tensor("`classes`", task.classes, torch.int64, (numbers["ways"],))
    found = task.classes.tolist()
    if len(set(found)) < len(found) or not told >= set(found):
        raise CheckFailure(f"`classes`: {found}; expected different ones of `classes(split)`, {_few(told)}")


def _few(numbers: Set[int]) -> str:
    first = ", ".join(map(str, sorted(numbers)[:5]))
    return f"{first}, … ({len(numbers)})" if len(numbers) > 5 else first


def _counts(numbers: Numbers) -> list[tuple[str, int]]:
    return list(zip(PARTS, (numbers["shots"], numbers["queries"]), strict=True))


def _judge_tensor(name: str, value: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if not isinstance(value, Tensor):
        raise CheckFailure(f"{name} is a {type(value).__name__}; expected a tensor")
    if value.dtype != dtype or value.shape != shape or value.requires_grad:
        graph = ", requires grad" if value.requires_grad else ""
        raise CheckFailure(f"{name}: {value.dtype} {tuple(value.shape)}{graph}; expected {dtype} {shape}")
    if not bool(torch.isfinite(value).all()):
        raise CheckFailure(f"{name} is not finite")


def inputs(x: Tensor) -> list[bytes]:
    """Each input's bits."""
    return [one.contiguous().numpy().tobytes() for one in x.detach()]


def alike(one: Task, two: Task) -> bool:
    """Whether two tasks are the same, bit for bit."""
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in TENSORS)
