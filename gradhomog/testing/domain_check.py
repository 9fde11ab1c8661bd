"""A check of a domain for the tests of its author: what tasks contain, how they depend on seeds, and splits."""

import copy
import functools
import itertools
import pickle
from collections.abc import Callable
from typing import get_args

import numpy as np
import torch

from gradhomog.errors import DataError
from gradhomog.learners.domains import Domain, Split
from gradhomog.learners.tasks import Task
from gradhomog.testing.assertions import error_of, require_tensor
from gradhomog.testing.check_results import CheckFailure
from gradhomog.testing.snapshots import changed_generators, input_bits, seeded_global_generators

TENSORS = ("support_x", "support_y", "query_x", "query_y")
Tasks = dict[Split, list[Task]]
"""Tasks of consecutive seeds by split."""

TOO_MANY = 10**6  # ways: more classes than any data set has


def check_domain(domain: Domain, *, ways: int = 2, shots: int = 1, queries: int = 2, tasks: int = 20) -> None:
    """Raise `CheckFailure` unless a domain's tasks are correct, in every split whose `check` accepts these numbers.

    1. Inputs are finite float32 `[n, *input_shape]`, pixels in [-1, 1]; no input is in both the support and the query
       set. Labels are int64, each class equally often; regression has float32 targets.
    2. `Task.domain` is the domain's name; `Task.classes` are distinct members of `classes(split)`, or neither exists.
    3. A seed determines its task: for any state of the global generators, which the domain does not change, in a
       pickled copy, and after earlier tasks were overwritten. Different seeds give different tasks.
    4. No input is in two of the splits train, val and test; in regression, equal seeds give different tasks.
    5. An unknown split, and too many ways in classification, raise a `DataError`.

    Args:
        domain: as made by `gradhomog.domain("clusters:plane(spread=0.2)")`.
        ways, shots, queries: numbers of a task; regression ignores `ways`.
        tasks: tasks that are drawn from each split.
    """
    numbers = {"ways": ways, "shots": shots, "queries": queries}
    accepted = [split for split in get_args(Split) if not _rejects(domain, split, numbers)]
    if "all" not in accepted:
        domain.check("all", **numbers)
    draw = functools.partial(_draw, splits=accepted, tasks=tasks, numbers=numbers)
    found = copy.deepcopy(draw(domain))
    for split, drawn in found.items():
        for task in drawn:
            _require_task(task, domain, split, **numbers)
        if all(_equal(drawn[0], other) for other in drawn[1:]):
            raise CheckFailure(f"{tasks} different seeds give the same task of the split {split!r}")
    _require_repeatable(domain, found, draw)
    _require_disjoint_splits(domain, {split: drawn for split, drawn in found.items() if split != "all"})
    if not _rejects(domain, "tset", numbers):  # type: ignore[arg-type]
        raise CheckFailure("`check` accepts the split 'tset': raise a DataError")
    if domain.outputs is None and not _rejects(domain, "all", {**numbers, "ways": TOO_MANY}):
        raise CheckFailure(f"`check` accepts {TOO_MANY} ways: raise a DataError")


def _draw(domain: Domain, splits: list[Split], tasks: int, numbers: dict[str, int]) -> Tasks:
    """Return one task per seed of each split."""
    return {
        split: [domain.sample(split, np.random.Generator(np.random.PCG64(seed)), **numbers) for seed in range(tasks)]
        for split in splits
    }


def _rejects(domain: Domain, split: Split, numbers: dict[str, int]) -> bool:
    return error_of(lambda: domain.check(split, **numbers), DataError) is not None


def _require_task(task: Task, domain: Domain, split: Split, *, ways: int, shots: int, queries: int) -> None:
    ways = ways if domain.outputs is None else 1
    for part, count in (("support", shots), ("query", queries)):
        x, y, name = getattr(task, f"{part}_x"), getattr(task, f"{part}_y"), f"`{part}_y`"
        require_tensor(f"`{part}_x`", x, torch.float32, (ways * count, *domain.input_shape))
        if len(domain.input_shape) == 3 and x.abs().max() > 1:
            raise CheckFailure(
                f"`{part}_x`: pixels from {float(x.min()):.4g} to {float(x.max()):.4g}; expected [-1, 1]"
            )
        if domain.outputs is not None:
            require_tensor(name, y, torch.float32, (count, domain.outputs))
            continue
        require_tensor(name, y, torch.int64, (ways * count,))
        if sorted(y.tolist()) != sorted([*range(ways)] * count):
            raise CheckFailure(f"{name}: labels {y.tolist()}; expected {count} of each of 0..{ways - 1}")
    if shared := {*input_bits(task.support_x)} & {*input_bits(task.query_x)}:
        raise CheckFailure(f"{len(shared)} inputs are in both the support set and the query set")
    if task.domain != domain.name:
        raise CheckFailure(f"a task has the domain {task.domain!r}; expected {domain.name!r}")
    classes, listed = [] if task.classes is None else task.classes.tolist(), {*domain.classes(split)}
    if len(set(classes)) != (ways if listed else 0) or not listed >= {*classes}:
        raise CheckFailure(f"`Task.classes` are {classes}; expected {ways} distinct members of `classes({split!r})`")


def _require_repeatable(domain: Domain, found: Tasks, draw: Callable[[Domain], Tasks]) -> None:
    for task in itertools.chain(*draw(domain).values()):
        for name in TENSORS:
            getattr(task, name).zero_()  # a task must not share memory with the domain
    copied = pickle.loads(pickle.dumps(domain))
    for source, how in ((domain, "after tasks were drawn and overwritten"), (copied, "in a pickled copy")):
        with seeded_global_generators(1):
            repeated = draw(source)
        for split, drawn in found.items():
            if not all(map(_equal, drawn, repeated[split])):
                raise CheckFailure(f"tasks of equal seeds of the split {split!r} differ {how}")
    if changed := changed_generators(lambda: draw(domain), 2):
        raise CheckFailure(f"`sample` changes the global generator of {changed}: use its argument `random`")


def _require_disjoint_splits(domain: Domain, tasks: Tasks) -> None:
    for first, second in itertools.combinations(tasks, 2):
        if domain.outputs is not None and all(map(_equal, tasks[first], tasks[second])):
            raise CheckFailure(f"the splits {first!r} and {second!r} give the same tasks for every seed")
        if domain.outputs is None and (shared := _inputs(tasks[first]) & _inputs(tasks[second])):
            raise CheckFailure(f"{len(shared)} inputs are in both splits, {first!r} and {second!r}")


def _inputs(tasks: list[Task]) -> set[bytes]:
    return {bits for task in tasks for x in (task.support_x, task.query_x) for bits in input_bits(x)}


def _equal(one: Task, two: Task) -> bool:
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in TENSORS)
