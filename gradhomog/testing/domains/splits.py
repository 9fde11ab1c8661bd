"""Checks of splits, limits and variants: disjoint splits, errors for unknown ones and for too large requests."""

from __future__ import annotations

import bisect
from functools import partial
from itertools import combinations

from gradhomog.errors import DataError, OptionError
from gradhomog.learners.domains import Domain, Split
from gradhomog.testing.assertions import error_of
from gradhomog.testing.check_results import CheckFailure, NotApplicable, check
from gradhomog.testing.domains.tasks import require_inputs, require_targets, same_task
from gradhomog.testing.snapshots import input_bits
from gradhomog.testing.subjects import (
    CANDIDATES,
    SMALLEST,
    TOO_MANY,
    DomainSubject,
    Numbers,
    draw_task,
    supported_numbers,
    supports,
)

DISJOINT: tuple[Split, ...] = ("train", "val", "test")
DRAWS = 60  # tasks of each split
LARGEST_DRAWN = 40  # upper bound of the ways, shots or queries of the largest tasks that are drawn
POINTS: Numbers = {"ways": 1, "shots": 20, "queries": 20}  # where the functions of splits are compared, in regression
UNKNOWN_VARIANT = "no_such_variant"


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


def _largest_accepted(domain: Domain, split: Split, number: str, most: int) -> int:
    """Return the largest number of ways (or shots, queries) that `check` accepts, at most `most`.

    The other two numbers are the smallest ones. Small numbers are tried first, because a check may list the classes.
    """

    def rejected(value: int) -> bool:
        return not supports(domain, split, {**SMALLEST, number: value})

    if not rejected(most):
        return most
    bound = next(value for value in (2**power for power in range(64)) if value >= most or rejected(value))
    return bisect.bisect_left(range(1, bound), True, key=rejected)


@check("domains")
def splits_share_no_class(subject: DomainSubject) -> None:
    """Train, val and test share no class: `check` accepts at most as many ways for all three as for `"all"`."""
    if not subject.classifies:
        raise NotApplicable("regression has no classes")
    total = _largest_accepted(subject.domain, "all", "ways", TOO_MANY)
    if total == TOO_MANY:
        raise NotApplicable("`check` accepts any number of ways: see the check `excessive_requests_rejected`")
    ways = {split: _largest_accepted(subject.domain, split, "ways", TOO_MANY) for split in _disjoint_splits(subject)}
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
    for name, call in (
        ("check", lambda: subject.domain.check(unknown, **numbers)),
        ("sample", lambda: draw_task(subject.domain, unknown, 0, numbers)),
    ):
        error = error_of(call, DataError, OptionError)
        _require_quoted(error, unknown, f"`{name}` {{}} the split {unknown!r}")


def _require_quoted(error: Exception | None, name: str, what: str) -> None:
    """Raise unless there is an error and it quotes a name; `{}` in `what` stands for the verb."""
    if error is None:
        raise CheckFailure(what.format("accepts"))
    if name not in str(error):
        raise CheckFailure(f"{what.format('rejects')} without quoting it: {error}") from error


@check("domains")
def excessive_requests_rejected(subject: DomainSubject) -> None:
    """A request for too many ways, shots or queries raises a `DataError` that names domain and split.

    Classification must reject a million ways. A million shots or queries may be accepted if inputs are unlimited.
    """
    for split in subject.supported:
        for number in ("ways", "shots", "queries"):
            numbers = {**SMALLEST, number: TOO_MANY}
            error = error_of(partial(subject.domain.check, split, **numbers), DataError)
            if error is None and number == "ways" and subject.classifies:
                raise CheckFailure(f"`check` accepts {TOO_MANY} ways for the split {split!r}")
            missing = [name for name in (subject.domain.name, split) if error and name not in str(error)]
            if missing:
                raise CheckFailure(f"`check` rejects {numbers} without naming {missing}: {error}") from error


@check("domains")
def accepted_requests_succeed(subject: DomainSubject) -> None:
    """`sample` draws tasks with the largest ways, shots and queries that `check` accepts, up to 40."""
    for split in subject.supported:
        for number in ("ways", "shots", "queries"):
            numbers = {**SMALLEST, number: _largest_accepted(subject.domain, split, number, LARGEST_DRAWN)}
            try:
                task = draw_task(subject.domain, split, 0, numbers)
            except Exception as error:
                raise CheckFailure(
                    f"`check` accepts {numbers} for the split {split!r}; "
                    f"`sample` raises {type(error).__name__}: {error}"
                ) from error
            require_inputs(task, subject.domain, numbers)
            require_targets(task, subject.domain, numbers)


# -- variants --------------------------------------------------------------------------------------------------------


def _listed(subject: DomainSubject) -> tuple[str, ...]:
    variants: tuple[str, ...] = subject.spec.variants
    if not variants:
        raise NotApplicable("the domain lists no variants, so any string may be a variant")
    return variants


@check("domains")
def listed_variants_work(subject: DomainSubject) -> None:
    """Listed variants can be made and draw tasks under different names, or raise a `DataError` for missing files.

    The first, the middle and the last variant are checked. A missing package raises a `DataError` too.
    """
    listed = _listed(subject)
    variants_by_name: dict[str, str] = {}
    for variant in dict.fromkeys((listed[0], listed[len(listed) // 2], listed[-1])):
        try:
            domain = _make_variant(subject, variant)
        except DataError:
            continue
        except OptionError as error:
            raise CheckFailure(f"the listed variant {variant!r} is rejected: {error}") from error
        if (other := variants_by_name.setdefault(domain.name, variant)) != variant:
            raise CheckFailure(f"the variants {other!r} and {variant!r} have the same name {domain.name!r}")
        numbers = supported_numbers(domain, "all")
        if numbers is None:
            raise CheckFailure(f"the variant {variant!r} has no tasks in the split 'all'")
        draw_task(domain, "all", 0, numbers)


def _make_variant(subject: DomainSubject, variant: str) -> Domain:
    try:
        return subject.make_with(variant=variant)
    except OptionError:
        if not subject.options:
            raise
        without_options = DomainSubject(subject.spec)  # the options may be valid only for the variant under check
        return without_options.make_with(variant=variant)


@check("domains")
def unknown_variant_rejected(subject: DomainSubject) -> None:
    """If variants are listed, another variant raises an `OptionError` or a `DataError` that quotes it."""
    _listed(subject)
    error = error_of(lambda: subject.make_with(variant=UNKNOWN_VARIANT), OptionError, DataError)
    if error is None:
        raise CheckFailure(f"the variant {UNKNOWN_VARIANT!r} is accepted although it is not listed")
    if UNKNOWN_VARIANT not in str(error):
        raise CheckFailure(f"the variant {UNKNOWN_VARIANT!r} is rejected without quoting it: {error}") from error
