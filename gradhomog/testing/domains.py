"""Checks of domains: attributes, tasks, randomness, splits, limits and variants."""

import bisect
import copy
import functools
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any, get_args

import numpy as np
import torch
from hypothesis import strategies as st

from gradhomog.errors import DataError, GradhomogError, OptionError, did_you_mean
from gradhomog.learners.domains import Domain, Split, split_domain
from gradhomog.learners.tasks import Task
from gradhomog.registry import Registry
from gradhomog.registry.specs import DomainSpec
from gradhomog.testing.assertions import error_of, require_tensor
from gradhomog.testing.check_results import CheckFailure, NotApplicable, check, describe_failure
from gradhomog.testing.property_search import for_all
from gradhomog.testing.snapshots import changed_generators, input_bits, seeded_global_generators
from gradhomog.testing.subjects import PluginSubject

OTHER_SIZE = 20  # pixels
TENSORS = ("support_x", "support_y", "query_x", "query_y")
_NUMBERS = st.fixed_dictionaries({"ways": st.integers(1, 6), "shots": st.integers(1, 5), "queries": st.integers(1, 5)})
Numbers = dict[str, int]
"""Ways, shots and queries."""

SPLITS: tuple[Split, ...] = get_args(Split)
SIZE = 28  # pixels; the default of runs
TOO_MANY = 10**6  # ways, shots or queries: more than any data set has
CANDIDATES: tuple[Numbers, ...] = tuple(
    {"ways": ways, "shots": shots, "queries": queries} for ways, shots, queries in ((5, 2, 3), (3, 1, 2), (2, 1, 1))
)
SMALLEST = CANDIDATES[-1]


class DomainSubject(PluginSubject[DomainSpec]):
    """The domain under check, given as text (`"glyphs:greek"`) or spec. The default variant is the first listed one."""

    kind = "domains"
    spec_type = DomainSpec
    product = Domain
    variant = ""

    def __init__(self, plugin: Any, registry: Registry | None = None) -> None:
        super().__init__(plugin, registry)
        listed = self.spec.variants
        self.variant = self.variant or (listed[0] if listed else "")
        self.title = f"{self.name}:{self.variant}" if self.variant else self.name
        if listed and self.variant not in listed:
            hint = did_you_mean(self.variant, listed, f"'{self.name}:{{}}'")
            raise OptionError(f"{self.name} has no variant {self.variant!r}.{hint} Its variants: {', '.join(listed)}.")

    def parse(self, text: str) -> tuple[str, dict[str, Any]]:
        name, self.variant, options = split_domain(text, self.registry)
        return name, dict(options)

    def make_with(self, *, variant: str | None = None, size: int = SIZE, **options: Any) -> Domain:
        """Make a fresh domain with the options under check, updated by `options`."""
        domain: Domain = self.make(self.variant if variant is None else variant, size=size, options=options)
        return domain

    @property
    def invalid_options(self) -> list[tuple[str, int]]:
        """Option values that a domain of images must reject. Other domains ignore `size`."""
        return [("size", 0), ("size", -1)] if self.has_images else []

    @functools.cached_property
    def _domain_and_supported(self) -> tuple[Domain, dict[Split, Numbers]]:
        domain = self.make_with()
        supported = {split: supported_numbers(domain, split) for split in SPLITS}
        return domain, {split: numbers for split, numbers in supported.items() if numbers is not None}

    @functools.cached_property
    def error(self) -> str:
        """The error of making the domain or drawing a task; empty without an error."""
        try:
            domain, supported = self._domain_and_supported
            if not supported:
                domain.check("all", **SMALLEST)
            for split, numbers in supported.items():
                draw_task(domain, split, 0, numbers)
        except Exception as error:  # reported once, by the check `draws_tasks`
            return describe_failure(error).partition("\n")[0]
        return ""

    @property
    def domain(self) -> Domain:
        """The domain, shared by all checks: it has no state, and a large data set is read only once."""
        if self.error:
            raise NotApplicable("the domain draws no tasks: see the check `draws_tasks`")
        return self._domain_and_supported[0]

    def make_fresh(self) -> Domain:
        """Make another domain with the same options."""
        _ = self.domain
        return self.make_with()

    @property
    def supported(self) -> dict[Split, Numbers]:
        """Ways, shots and queries that each split supports; splits without tasks are left out."""
        _ = self.domain
        return self._domain_and_supported[1]

    @property
    def classifies(self) -> bool:
        return self.domain.outputs is None

    @property
    def has_images(self) -> bool:
        return len(self.domain.input_shape) == 3


def supported_numbers(domain: Domain, split: Split) -> Numbers | None:
    """Return the first of the `CANDIDATES` that a split supports; None if it supports none."""
    return next((numbers for numbers in CANDIDATES if supports(domain, split, numbers)), None)


def supports(domain: Domain, split: Split, numbers: Numbers) -> bool:
    """True if the domain's `check` accepts these numbers."""
    try:
        domain.check(split, **numbers)
    except GradhomogError:
        return False
    return True


def draw_task(domain: Domain, split: Split, seed: int, numbers: Numbers) -> Task:
    """Draw the task of a seed, with a generator like the one that a run makes for each task."""
    return domain.sample(split, seeded_generator(seed), **numbers)


def seeded_generator(seed: int) -> np.random.Generator:
    """Return a generator like the one that a run makes for each task."""
    return np.random.Generator(np.random.PCG64(seed))


# -- attributes ------------------------------------------------------------------------------------------------------


@check("domains")
def draws_tasks(subject: DomainSubject) -> None:
    """The domain can be made with 28-pixel images, and every split whose `check` accepts some numbers draws a task.

    At least one split must support two ways, one shot and one query. If this check fails, checks that need tasks are
    not applicable.
    """
    if subject.error:
        raise CheckFailure(subject.error)


@check("domains")
def attributes(subject: DomainSubject) -> None:
    """`name` is a string, `input_shape` a tuple of positive integers, `outputs` None or a positive integer.

    Two domains made with the same options have equal attributes: networks and reports depend on them.
    """
    domain, other = subject.domain, subject.make_fresh()
    if not isinstance(domain.name, str) or not domain.name.strip():
        raise CheckFailure(f"`name` must be a nonempty string; got {domain.name!r}")
    shape, outputs = domain.input_shape, domain.outputs
    if not isinstance(shape, tuple) or not shape or not all(_positive(length) for length in shape):
        raise CheckFailure(f"`input_shape` must be a tuple of positive integers; got {shape!r}")
    if outputs is not None and not _positive(outputs):
        raise CheckFailure(f"`outputs` must be None (classification) or a positive integer; got {outputs!r}")
    for name in ("name", "input_shape", "outputs"):
        if getattr(domain, name) != getattr(other, name):
            values = f"{getattr(domain, name)!r} and {getattr(other, name)!r}"
            raise CheckFailure(f"`{name}` differs between two domains made with the same options: {values}")


def _positive(value: object) -> bool:
    return type(value) is int and value > 0  # excludes True and numpy integers


@check("domains")
def image_size(subject: DomainSubject) -> None:
    """Images have the requested `size`, or an error that names `size` rejects it.

    Runs train on several domains together, so `input_shape` must be `(channels, size, size)` for stored images of any
    size.
    """
    if not subject.has_images:
        raise NotApplicable("the domain's inputs are not images")
    for size in (SIZE, OTHER_SIZE):
        try:
            shape = subject.make_with(size=size).input_shape
        except (OptionError, DataError) as error:
            if "size" not in str(error):
                raise
            continue
        if shape[1:] != (size, size):
            raise CheckFailure(
                f"with size={size}, inputs have the shape {shape}; expected ({shape[0]}, {size}, {size})"
            )


# -- tasks -----------------------------------------------------------------------------------------------------------


def _for_all_tasks(subject: DomainSubject, require: Callable[[Task, Split, Numbers], None]) -> None:
    """Call `require` for tasks of every split, with drawn ways, shots and queries that `check` accepts."""
    domain, seeds = subject.domain, st.integers(0, 2**32 - 1)

    @for_all(split=st.sampled_from(sorted(subject.supported)), numbers=_NUMBERS, seed=seeds)
    def _(split: Split, numbers: Numbers, seed: int) -> None:
        if supports(domain, split, numbers):
            require(draw_task(domain, split, seed, numbers), split, numbers)


@check("domains")
def inputs_fit(subject: DomainSubject) -> None:
    """Inputs are finite float32 `[n, *input_shape]` with the requested n; pixels are in [-1, 1].

    Checked for every split and all ways, shots and queries that `check` accepts.
    """
    _for_all_tasks(subject, lambda task, _, numbers: require_inputs(task, subject.domain, numbers))


def require_inputs(task: Task, domain: Domain, numbers: Numbers) -> None:
    """Raise unless inputs are finite float32 of the domain's shape and the requested number; pixels in [−1, 1]."""
    if not isinstance(task, Task):
        raise CheckFailure(f"`sample` returns a {type(task).__name__}; expected a gradhomog.Task")
    ways = numbers["ways"] if domain.outputs is None else 1
    for part, count in _counts(numbers):
        x, name = getattr(task, f"{part}_x"), f"`{part}_x`"
        require_tensor(name, x, torch.float32, (ways * count, *domain.input_shape))
        if len(domain.input_shape) == 3 and not -1 <= float(x.min()) <= float(x.max()) <= 1:
            raise CheckFailure(f"{name}: pixels from {float(x.min()):.4g} to {float(x.max()):.4g}; expected [-1, 1]")


@check("domains")
def targets_fit(subject: DomainSubject) -> None:
    """Labels are int64, exactly `shots` (or `queries`) of each of 0..ways-1; regression has float32 `[n, outputs]`.

    Checked for every split and all ways, shots and queries that `check` accepts.
    """
    _for_all_tasks(subject, lambda task, _, numbers: require_targets(task, subject.domain, numbers))


def require_targets(task: Task, domain: Domain, numbers: Numbers) -> None:
    """Raise unless each class has the requested number of int64 labels; in regression, each point float32 targets."""
    for part, count in _counts(numbers):
        y, name, ways = getattr(task, f"{part}_y"), f"`{part}_y`", numbers["ways"]
        if domain.outputs is not None:
            require_tensor(name, y, torch.float32, (count, domain.outputs))
            continue
        require_tensor(name, y, torch.int64, (ways * count,))
        outside = bool(((y < 0) | (y >= ways)).any())
        if outside or torch.bincount(y, minlength=ways).tolist() != [count] * ways:
            raise CheckFailure(f"{name}: labels {y.tolist()}; expected {count} of each of 0..{ways - 1}")


def _counts(numbers: Numbers) -> list[tuple[str, int]]:
    return [("support", numbers["shots"]), ("query", numbers["queries"])]


@check("domains")
def classes_consistent(subject: DomainSubject) -> None:
    """`Task.classes` are distinct members of `classes(split)`, one per label; both exist or neither.

    Learners that classify all training classes jointly need them.
    """
    split_classes = {split: frozenset(subject.domain.classes(split)) for split in subject.supported}

    def require(task: Task, split: Split, numbers: Numbers) -> None:
        listed = split_classes[split]
        if (task.classes is None) != (not listed):
            present, missing = (
                ("`classes(split)`", "`Task.classes`") if listed else ("`Task.classes`", "`classes(split)`")
            )
            raise CheckFailure(
                f"{present} is given, but {missing} is not; learners that classify all classes need both"
            )
        if task.classes is None:
            return
        require_tensor("`Task.classes`", task.classes, torch.int64, (numbers["ways"],))
        classes = task.classes.tolist()
        if len(set(classes)) < len(classes) or not listed >= set(classes):
            first_listed = ", ".join(map(str, sorted(listed)[:5])) + (f", … ({len(listed)})" if len(listed) > 5 else "")
            raise CheckFailure(
                f"`Task.classes`: {classes}; expected distinct members of `classes(split)`: {first_listed}"
            )

    _for_all_tasks(subject, require)


@check("domains")
def support_and_query_disjoint(subject: DomainSubject) -> None:
    """No input is in both the support set and the query set, because memorization would classify such a query.

    Inputs are compared exactly (every bit), so a data set that contains an image twice fails too.
    """

    def require(task: Task, split: Split, numbers: Numbers) -> None:
        if shared := set(input_bits(task.support_x)) & set(input_bits(task.query_x)):
            raise CheckFailure(f"{len(shared)} inputs are in both the support set and the query set")

    _for_all_tasks(subject, require)


def same_task(one: Task, two: Task) -> bool:
    """True if two tasks are exactly equal."""
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in TENSORS)


@check("domains")
def tasks_carry_domain_name(subject: DomainSubject) -> None:
    """`Task.domain` is the domain's name, also after the domain is renamed.

    A run renames two domains of the same name. State and reports are keyed by the name.
    """
    renamed = copy.copy(subject.domain)
    renamed.name = "another name"
    for domain in (subject.domain, renamed):
        for split, numbers in subject.supported.items():
            task = draw_task(domain, split, 0, numbers)
            if task.domain != domain.name:
                raise CheckFailure(
                    f"a task of the split {split!r} has the domain {task.domain!r}; expected {domain.name!r}"
                )


@check("domains")
def tasks_own_their_memory(subject: DomainSubject) -> None:
    """Writing to a task's tensors changes neither the domain nor tasks that were drawn before."""
    domain = subject.domain
    for split, numbers in subject.supported.items():
        kept, written = (draw_task(domain, split, 1, numbers) for _ in range(2))
        expected = copy.deepcopy(kept)
        for name in TENSORS:
            getattr(written, name).zero_()
        if not same_task(kept, expected):
            raise CheckFailure(f"two tasks of the split {split!r} share memory: writing to one changes the other")
        if not same_task(draw_task(domain, split, 1, numbers), expected):
            raise CheckFailure(f"writing to a task of the split {split!r} changes later draws from the domain")


# -- randomness ------------------------------------------------------------------------------------------------------

SEEDS = range(10)
Tasks = dict[tuple[Split, int], Task]
"""Tasks by split and seed."""


def _draw_tasks(subject: DomainSubject, domain: Domain, seeds: Sequence[int] = range(3)) -> Tasks:
    """Draw one task per seed and supported split, in this order."""
    return {
        (split, seed): draw_task(domain, split, seed, numbers)
        for seed in seeds
        for split, numbers in subject.supported.items()
    }


def _require_same(found: Tasks, expected: Tasks, how: str) -> None:
    for split, seed in expected:
        if not same_task(found[split, seed], expected[split, seed]):
            raise CheckFailure(f"the task of seed {seed} and split {split!r} differs {how}")


@check("domains")
def global_generators_unchanged(subject: DomainSubject) -> None:
    """Making the domain and drawing tasks do not change the global generators of torch, numpy and Python."""
    for seed in (11, 12):  # seeding a global generator changes at least one of them
        if changed := changed_generators(lambda: _draw_tasks(subject, subject.make_fresh()), seed):
            raise CheckFailure(
                f"the domain uses the global generator of {changed}: use the `random` passed to `sample`"
            )


@check("domains")
def determined_by_generator(subject: DomainSubject) -> None:
    """The generator's seed alone determines a task exactly (every bit).

    Two domains made with the same options draw equal tasks, independently of the global generators and earlier draws.
    """
    tasks = []
    for seed in (1, 2):
        with seeded_global_generators(seed):
            tasks.append(_draw_tasks(subject, subject.make_fresh()))
    _require_same(tasks[1], tasks[0], "between two domains with the same options and other global generators")
    domain = subject.make_fresh()
    split, numbers = next(iter(subject.supported.items()))
    for seed in range(7):  # an odd number, so that a cycle of draws does not end where it began
        draw_task(domain, split, seed, numbers)
    _require_same(_draw_tasks(subject, domain, [2, 1, 0]), tasks[0], "after other tasks were drawn")


@check("domains")
def seeds_differ(subject: DomainSubject) -> None:
    """Different seeds give different tasks, and so do consecutive draws from one generator."""
    domain = subject.domain
    for split, numbers in subject.supported.items():
        random = seeded_generator(0)
        for how, tasks in (
            ("different seeds", [draw_task(domain, split, seed, numbers) for seed in SEEDS]),
            ("consecutive draws", [domain.sample(split, random, **numbers) for _ in SEEDS]),
        ):
            if all(same_task(tasks[0], other) for other in tasks[1:]):
                raise CheckFailure(f"{len(tasks)} {how} give the same task of the split {split!r}")


@check("domains")
def pickle_draws_same_tasks(subject: DomainSubject) -> None:
    """A pickled domain, as in a worker process, draws the same tasks, also if it is pickled after earlier draws."""
    domain, expected = subject.make_fresh(), _draw_tasks(subject, subject.domain)
    for when in ("before any draw", "after other draws"):
        copy = pickle.loads(pickle.dumps(domain))
        _require_same(_draw_tasks(subject, copy), expected, f"for a copy that was pickled {when}")
        _draw_tasks(subject, domain, SEEDS)


DISJOINT: tuple[Split, ...] = ("train", "val", "test")
DRAWS = 60  # tasks of each split
LARGEST_DRAWN = 40  # upper bound of the ways, shots or queries of the largest tasks that are drawn
UNKNOWN_VARIANT = "no_such_variant"


def _disjoint_splits(subject: DomainSubject) -> list[Split]:
    """Return the splits among train, val and test that the domain supports."""
    splits = [split for split in DISJOINT if split in subject.supported]
    if len(splits) < 2:
        raise NotApplicable(f"fewer than two of train, val and test are supported: {splits[0] if splits else 'none'}")
    return splits


@check("domains")
def splits_share_no_input(subject: DomainSubject) -> None:
    """In many draws, no input of one split equals an input of another split.

    In regression two functions may be sampled at the same points, so whole tasks of the same seeds are compared.
    """
    tasks = {
        split: [draw_task(subject.domain, split, seed, subject.supported[split]) for seed in range(DRAWS)]
        for split in _disjoint_splits(subject)
    }
    for first, second in combinations(tasks, 2):
        if not subject.classifies and all(map(same_task, tasks[first], tasks[second])):
            raise CheckFailure(f"the splits {first!r} and {second!r} give the same tasks for every seed")
        if subject.classifies and (shared := _inputs(tasks[first]) & _inputs(tasks[second])):
            raise CheckFailure(f"{len(shared)} inputs are in both splits, {first!r} and {second!r}")


def _inputs(tasks: Sequence[Task]) -> set[bytes]:
    return {bits for task in tasks for x in (task.support_x, task.query_x) for bits in input_bits(x)}


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
    calls = {
        "check": lambda: subject.domain.check(unknown, **numbers),
        "sample": lambda: draw_task(subject.domain, unknown, 0, numbers),
    }
    for name, call in calls.items():
        _require_quoted(error_of(call, DataError, OptionError), unknown, f"`{name}` {{}} the split {unknown!r}")


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
    _require_quoted(error, UNKNOWN_VARIANT, f"the domain {{}} the variant {UNKNOWN_VARIANT!r}")
