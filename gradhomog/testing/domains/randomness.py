"""Checks of randomness: the generator alone determines a task, also in worker processes."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from gradhomog.learners.domains import Domain, Split
from gradhomog.learners.tasks import Task
from gradhomog.testing.check import CheckFailure, check
from gradhomog.testing.domains.subject import DomainSubject, draw_task, seeded_generator
from gradhomog.testing.domains.tasks import same_task
from gradhomog.testing.snapshots import changed_names, global_generators, seeded_global_generators

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
        with seeded_global_generators(seed):
            before = global_generators()
            _draw_tasks(subject, subject.make_fresh())
            changed = changed_names(before, global_generators())
        if changed:
            raise CheckFailure(
                f"the domain uses the global generator of {', '.join(changed)}: use the `random` passed to `sample`"
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
