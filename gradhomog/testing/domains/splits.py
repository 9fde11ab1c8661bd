"""Checks of splits and limits: disjoint splits, errors for unknown splits and for requests of too many classes."""

from __future__ import annotations

from itertools import combinations

from gradhomog.errors import DataError, OptionError
from gradhomog.learners.domains import Split
from gradhomog.testing.check import CheckFailure, NotApplicable, check
from gradhomog.testing.domains.subject import (
    CANDIDATES,
    SMALLEST,
    TOO_MANY,
    DomainSubject,
    Numbers,
    draw_task,
    largest_accepted,
    seeded_generator,
    supports,
)
from gradhomog.testing.domains.tasks import input_bits, require_inputs, require_targets, same_task

DISJOINT: tuple[Split, ...] = ("train", "val", "test")
DRAWS = 60  # tasks of each split
LARGEST_DRAWN = 40  # upper bound of the ways, shots or queries of the largest tasks that are drawn
POINTS: Numbers = {
    "ways": 1,
    "shots": 20,
    "queries": 20,
}  # for regression: the splits' functions are compared at these points


def _disjoint_splits(subject: DomainSubject) -> list[Split]:
    """Return the splits among train, val and test that the domain supports."""
    splits = [split for split in DISJOINT if split in subject.supported]
    if len(splits) < 2:
        raise NotApplicable(f"fewer than two of train, val and test are supported: {splits[0] if splits else 'none'}")
    return splits


def _numbers(subject: DomainSubject, first: Split, second: Split) -> Numbers:
    """Numbers of ways, shots and queries that two splits support."""
    if not subject.classifies:
        return POINTS if all(supports(subject.domain, split, POINTS) for split in (first, second)) else SMALLEST
    return next(
        numbers for numbers in CANDIDATES if all(supports(subject.domain, split, numbers) for split in (first, second))
    )


@check("domains")
def splits_differ(subject: DomainSubject) -> None:
    """Different splits give different tasks from the same seed."""
    for first, second in combinations(_disjoint_splits(subject), 2):
        numbers = _numbers(subject, first, second)
        pairs = [[draw_task(subject.domain, split, seed, numbers) for split in (first, second)] for seed in range(8)]
        if all(same_task(*pair) for pair in pairs):
            raise CheckFailure(f"the splits {first!r} and {second!r} give the same tasks for every seed")


@check("domains")
def splits_share_no_input(subject: DomainSubject) -> None:
    """In many draws, no input of one split equals an input of another split."""
    if not subject.classifies:
        raise NotApplicable("regression: two functions may be sampled at the same points")
    inputs: dict[Split, set[bytes]] = {}
    for split in _disjoint_splits(subject):
        tasks = [draw_task(subject.domain, split, seed, subject.supported[split]) for seed in range(DRAWS)]
        inputs[split] = {bits for task in tasks for x in (task.support_x, task.query_x) for bits in input_bits(x)}
    for first, second in combinations(inputs, 2):
        if shared := inputs[first] & inputs[second]:
            raise CheckFailure(f"{len(shared)} inputs are in both splits, {first!r} and {second!r}")


@check("domains")
def splits_share_no_class(subject: DomainSubject) -> None:
    """Train, val and test share no class: `check` accepts at most as many ways for all three as for `"all"`."""
    if not subject.classifies:
        raise NotApplicable("regression has no classes")
    total = largest_accepted(subject.domain, "all", "ways", TOO_MANY)
    if total == TOO_MANY:
        raise NotApplicable("`check` accepts any number of ways: see the check `excessive_requests_rejected`")
    ways = {split: largest_accepted(subject.domain, split, "ways", TOO_MANY) for split in _disjoint_splits(subject)}
    if sum(ways.values()) > total:
        counts = ", ".join(f"{count} for {split!r}" for split, count in ways.items())
        raise CheckFailure(
            f"`check` accepts {total} ways for the split 'all', fewer than for the other splits together ({counts}): "
            "some classes are in two splits"
        )


@check("domains")
def all_split_is_complete(subject: DomainSubject) -> None:
    """The split `"all"` supports every task that another split supports: it contains all classes.

    Runs use it for domains that they only test on.
    """
    for split, numbers in subject.supported.items():
        if not supports(subject.domain, "all", numbers):
            raise CheckFailure(f"the split 'all' rejects {numbers}, which the split {split!r} supports")


@check("domains")
def unknown_split_rejected(subject: DomainSubject) -> None:
    """For an unknown split, `check` and `sample` raise a `DataError` that quotes the split."""
    numbers = next(iter(subject.supported.values()))
    unknown: Split = "tset"  # type: ignore[assignment]
    for name in ("check", "sample"):
        try:
            if name == "check":
                subject.domain.check(unknown, **numbers)
            else:
                subject.domain.sample(unknown, seeded_generator(0), **numbers)
        except (DataError, OptionError) as error:
            if unknown not in str(error):
                raise CheckFailure(f"`{name}` rejects the split {unknown!r} without quoting it: {error}") from error
            continue
        raise CheckFailure(f"`{name}` accepts the split {unknown!r}")


@check("domains")
def excessive_requests_rejected(subject: DomainSubject) -> None:
    """A request for too many ways, shots or queries raises a `DataError` that names domain and split.

    Classification must reject a million ways. A million shots or queries may be accepted if inputs are unlimited.
    """
    for split in subject.supported:
        for number in ("ways", "shots", "queries"):
            numbers = {**SMALLEST, number: TOO_MANY}
            try:
                subject.domain.check(split, **numbers)
            except DataError as error:
                missing = [name for name in (subject.domain.name, split) if name not in str(error)]
                if missing:
                    raise CheckFailure(f"`check` rejects {numbers} without naming {missing}: {error}") from error
                continue
            if number == "ways" and subject.classifies:
                raise CheckFailure(f"`check` accepts {TOO_MANY} ways for the split {split!r}")


@check("domains")
def accepted_requests_succeed(subject: DomainSubject) -> None:
    """`sample` draws tasks with the largest ways, shots and queries that `check` accepts, up to 40."""
    for split in subject.supported:
        for number in ("ways", "shots", "queries"):
            numbers = {**SMALLEST, number: largest_accepted(subject.domain, split, number, LARGEST_DRAWN)}
            try:
                task = draw_task(subject.domain, split, 0, numbers)
            except Exception as error:
                raise CheckFailure(
                    f"`check` accepts {numbers} for the split {split!r}; "
                    f"`sample` raises {type(error).__name__}: {error}"
                ) from error
            require_inputs(task, subject.domain, numbers)
            require_targets(task, subject.domain, numbers)
