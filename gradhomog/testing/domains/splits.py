"""Checks of splits and of limits: disjoint splits, refusals of unknown splits and of more than there is."""

from __future__ import annotations

from itertools import combinations

from gradhomog.domains import Split
from gradhomog.errors import DataError, OptionError
from gradhomog.testing.checking import CheckFailure, NotApplicable, check
from gradhomog.testing.domains.subject import (
    SMALLEST,
    TOO_MANY,
    TRIED,
    DomainSubject,
    Numbers,
    draw,
    generator,
    largest,
    serves,
)
from gradhomog.testing.domains.tasks import input_bits, require_inputs, require_targets, same_task

APART: tuple[Split, ...] = ("train", "val", "test")
DRAWS = 60  # tasks of each split
DRAWN = 40  # ways, shots or queries of the largest tasks that are drawn
POINTS: Numbers = {"ways": 1, "shots": 20, "queries": 20}  # of a function


def _apart(subject: DomainSubject) -> list[Split]:
    """The splits of the three that are served."""
    found = [split for split in APART if split in subject.served]
    if len(found) < 2:
        raise NotApplicable(f"of train, val and test it serves {found[0] if found else 'none'} only")
    return found


def _numbers(subject: DomainSubject, one: Split, two: Split) -> Numbers:
    """Numbers that both of two splits serve."""
    if not subject.classifies:
        return POINTS if all(serves(subject.domain, split, POINTS) for split in (one, two)) else SMALLEST
    return next(numbers for numbers in TRIED if all(serves(subject.domain, split, numbers) for split in (one, two)))


@check("domains")
def splits_differ(subject: DomainSubject) -> None:
    """From one generator seed, different splits give different tasks."""
    for one, two in combinations(_apart(subject), 2):
        numbers = _numbers(subject, one, two)
        pairs = [[draw(subject.domain, split, seed, numbers) for split in (one, two)] for seed in range(8)]
        if all(same_task(*pair) for pair in pairs):
            raise CheckFailure(f"the splits {one!r} and {two!r} give the same tasks, seed for seed")


@check("domains")
def splits_share_no_input(subject: DomainSubject) -> None:
    """Over many draws no input of one split equals one of another."""
    if not subject.classifies:
        raise NotApplicable("regression: two functions may be sampled at the same points")
    seen: dict[Split, set[bytes]] = {}
    for split in _apart(subject):
        tasks = [draw(subject.domain, split, seed, subject.served[split]) for seed in range(DRAWS)]
        seen[split] = {one for task in tasks for x in (task.support_x, task.query_x) for one in input_bits(x)}
    for one, two in combinations(seen, 2):
        if shared := seen[one] & seen[two]:
            raise CheckFailure(f"{len(shared)} inputs are in the split {one!r} and in the split {two!r}")


@check("domains")
def splits_share_no_class(subject: DomainSubject) -> None:
    """By `check`, train, val and test together have at most as many classes as `"all"`: they share none."""
    if not subject.classifies:
        raise NotApplicable("regression: there are no classes to count")
    whole = largest(subject.domain, "all", "ways", TOO_MANY)
    if whole == TOO_MANY:
        raise NotApplicable("`check` accepts any number of ways: see the check `refuses_too_much`")
    parts = {split: largest(subject.domain, split, "ways", TOO_MANY) for split in _apart(subject)}
    if sum(parts.values()) > whole:
        found = ", ".join(f"{count} of {split}" for split, count in parts.items())
        raise CheckFailure(
            f"`check` accepts tasks of up to {found} classes, and of all only {whole}: some are in two splits"
        )


@check("domains")
def all_serves(subject: DomainSubject) -> None:
    """`"all"` serves all that any other split serves: it is every class, for domains that a run only tests on."""
    for split, numbers in subject.served.items():
        if not serves(subject.domain, "all", numbers):
            raise CheckFailure(f"the split 'all' refuses {numbers}, which the split {split!r} serves")


@check("domains")
def unknown_split_refused(subject: DomainSubject) -> None:
    """A split that does not exist is refused, by `check` and by `sample`, in a `DataError` that quotes it."""
    numbers = next(iter(subject.served.values()))
    unknown: Split = "tset"  # type: ignore[assignment]
    for name in ("check", "sample"):
        try:
            if name == "check":
                subject.domain.check(unknown, **numbers)
            else:
                subject.domain.sample(unknown, generator(0), **numbers)
        except (DataError, OptionError) as error:
            if unknown not in str(error):
                raise CheckFailure(f"`{name}` refuses the split {unknown!r} without quoting it: {error}") from error
            continue
        raise CheckFailure(f"`{name}` accepts the split {unknown!r}")


@check("domains")
def refuses_too_much(subject: DomainSubject) -> None:
    """More than there is raises a `DataError` that names domain and split.

    A million ways, in classification; a million shots or queries, unless inputs never run out.
    """
    for split in subject.served:
        for number in ("ways", "shots", "queries"):
            numbers = {**SMALLEST, number: TOO_MANY}
            try:
                subject.domain.check(split, **numbers)
            except DataError as error:
                missing = [name for name in (subject.domain.name, split) if name not in str(error)]
                if missing:
                    raise CheckFailure(f"`check` refuses {numbers} without naming {missing}: {error}") from error
                continue
            if number == "ways" and subject.classifies:
                raise CheckFailure(f"`check` accepts {TOO_MANY} ways of the split {split!r}")


@check("domains")
def serves_what_it_accepts(subject: DomainSubject) -> None:
    """The largest numbers of ways, shots and queries that `check` accepts, up to 40, are served by `sample`."""
    for split in subject.served:
        for number in ("ways", "shots", "queries"):
            numbers = {**SMALLEST, number: largest(subject.domain, split, number, DRAWN)}
            try:
                task = draw(subject.domain, split, 0, numbers)
            except Exception as error:
                raise CheckFailure(
                    f"`check` accepts {numbers} of the split {split!r}; `sample` raises {type(error).__name__}: {error}"
                ) from error
            require_inputs(task, subject.domain, numbers)
            require_targets(task, subject.domain, numbers)
