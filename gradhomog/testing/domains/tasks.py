"""A task: its tensors, its labels, its name; no input is told twice, and nothing of the domain can be written to."""

from __future__ import annotations

import copy

from hypothesis import strategies as st

from gradhomog.domains import Split
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.domains.looking import TENSORS, alike, inputs, judge_classes, judge_inputs, judge_targets
from gradhomog.testing.domains.subject import DomainSubject, Numbers, draw, serves
from gradhomog.testing.searching import for_all

_NUMBERS = st.fixed_dictionaries({"ways": st.integers(1, 6), "shots": st.integers(1, 5), "queries": st.integers(1, 5)})
_SEEDS = st.integers(0, 2**32 - 1)


@check("domains")
def inputs_fit(subject: DomainSubject) -> None:
    """Inputs are finite float32 `[n, *input_shape]`, as many as asked for; those of images lie in [-1, 1].

    For all numbers of ways, shots and queries that `check` accepts, from every split.
    """
    domain = subject.domain

    @for_all(split=st.sampled_from(sorted(subject.served)), numbers=_NUMBERS, seed=_SEEDS)
    def _(split: Split, numbers: Numbers, seed: int) -> None:
        if serves(domain, split, numbers):
            judge_inputs(draw(domain, split, seed, numbers), domain, numbers)


@check("domains")
def targets_fit(subject: DomainSubject) -> None:
    """Labels are int64, exactly `shots` (or `queries`) of each of 0..ways-1; regression has float32 `[n, outputs]`.

    For all numbers of ways, shots and queries that `check` accepts, from every split.
    """
    domain = subject.domain

    @for_all(split=st.sampled_from(sorted(subject.served)), numbers=_NUMBERS, seed=_SEEDS)
    def _(split: Split, numbers: Numbers, seed: int) -> None:
        if serves(domain, split, numbers):
            judge_targets(draw(domain, split, seed, numbers), domain, numbers)


@check("domains")
def classes_told(subject: DomainSubject) -> None:
    """`Task.classes`, if told, are different numbers of `classes(split)`, one for each label; both are told or neither.

    Learners that classify all training classes at once go by them.
    """
    domain = subject.domain
    told = {split: frozenset(domain.classes(split)) for split in subject.served}

    @for_all(split=st.sampled_from(sorted(subject.served)), numbers=_NUMBERS, seed=_SEEDS)
    def _(split: Split, numbers: Numbers, seed: int) -> None:
        if serves(domain, split, numbers):
            judge_classes(draw(domain, split, seed, numbers), told[split], numbers)


@check("domains")
def support_and_query_apart(subject: DomainSubject) -> None:
    """No input is in the support set and in the query set: a query would be answered by memory.

    Compared bit for bit, so data that hold an image twice fail too.
    """
    domain = subject.domain

    @for_all(split=st.sampled_from(sorted(subject.served)), numbers=_NUMBERS, seed=_SEEDS)
    def _(split: Split, numbers: Numbers, seed: int) -> None:
        if serves(domain, split, numbers):
            task = draw(domain, split, seed, numbers)
            if shared := set(inputs(task.support_x)) & set(inputs(task.query_x)):
                raise CheckFailure(f"{len(shared)} of the support inputs are among the queries")


@check("domains")
def tasks_named(subject: DomainSubject) -> None:
    """A task carries the domain's name; also of a copy that was renamed, as a run does with two of one name.

    State and reports are kept by that name.
    """
    renamed = copy.copy(subject.domain)
    renamed.name = "another name"
    for domain in (subject.domain, renamed):
        for split, numbers in subject.served.items():
            task = draw(domain, split, 0, numbers)
            if task.domain != domain.name:
                raise CheckFailure(
                    f"a task of the split {split!r} says that its domain is {task.domain!r}; `name` is {domain.name!r}"
                )


@check("domains")
def tasks_own_their_memory(subject: DomainSubject) -> None:
    """Writing into a task's tensors changes neither the domain nor a task that was drawn before."""
    domain = subject.domain
    for split, numbers in subject.served.items():
        kept, written = (draw(domain, split, 1, numbers) for _ in range(2))
        expected = copy.deepcopy(kept)
        for name in TENSORS:
            getattr(written, name).zero_()
        if not alike(kept, expected):
            raise CheckFailure(f"two tasks of the split {split!r} share memory: writing into one changes the other")
        if not alike(draw(domain, split, 1, numbers), expected):
            raise CheckFailure(f"writing into a task of the split {split!r} changes what the domain draws afterwards")
