"""Checks of randomness: the generator decides a task, nothing else does, and worker processes draw the same."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from gradhomog.domains import Domain, Split
from gradhomog.tasks import Task
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.domains.subject import DomainSubject, draw, generator
from gradhomog.testing.domains.tasks import same_task
from gradhomog.testing.snapshots import changed_names, global_generators, seeded

SEEDS = range(10)
Tasks = dict[tuple[Split, int], Task]
"""By split and seed."""


def _tasks(subject: DomainSubject, domain: Domain, seeds: Sequence[int] = range(3)) -> Tasks:
    """A task of each seed from each split that is served, drawn in this order."""
    return {
        (split, seed): draw(domain, split, seed, numbers) for seed in seeds for split, numbers in subject.served.items()
    }


def _require_same(found: Tasks, expected: Tasks, how: str) -> None:
    for split, seed in expected:
        if not same_task(found[split, seed], expected[split, seed]):
            raise CheckFailure(f"the task of seed {seed} and split {split!r} differs {how}")


@check("domains")
def global_generators_unchanged(subject: DomainSubject) -> None:
    """Making it and drawing from it leave the global generators of torch, numpy and Python unchanged."""
    for seed in (11, 12):  # seeding a global generator changes at least one of them
        with seeded(seed):
            before = global_generators()
            _tasks(subject, subject.another())
            moved = changed_names(before, global_generators())
        if moved:
            raise CheckFailure(
                f"it uses the global generator of {', '.join(moved)}: draw from the `random` that `sample` receives"
            )


@check("domains")
def generator_decides(subject: DomainSubject) -> None:
    """The generator's seed alone decides a task, bit for bit.

    Two made alike agree, independently of the global generators and of earlier draws.
    """
    found = []
    for seed in (1, 2):
        with seeded(seed):
            found.append(_tasks(subject, subject.another()))
    _require_same(found[1], found[0], "of two made alike, with other global generators")
    domain = subject.another()
    split, numbers = next(iter(subject.served.items()))
    for seed in range(7):  # an odd number: a cycle of draws must not be closed
        draw(domain, split, seed, numbers)
    _require_same(_tasks(subject, domain, [2, 1, 0]), found[0], "after others were drawn")


@check("domains")
def seeds_differ(subject: DomainSubject) -> None:
    """Different seeds give different tasks, and so do consecutive draws from one generator."""
    domain = subject.domain
    for split, numbers in subject.served.items():
        random = generator(0)
        for how, tasks in (
            ("different seeds", [draw(domain, split, seed, numbers) for seed in SEEDS]),
            ("consecutive draws", [domain.sample(split, random, **numbers) for _ in SEEDS]),
        ):
            if all(same_task(tasks[0], other) for other in tasks[1:]):
                raise CheckFailure(f"{len(tasks)} {how} give the same task of the split {split!r}")


@check("domains")
def pickled(subject: DomainSubject) -> None:
    """Pickled, as for a worker process, it draws the same tasks, also after earlier draws."""
    domain, expected = subject.another(), _tasks(subject, subject.domain)
    for when in ("as it was made", "after it was drawn from"):
        again = pickle.loads(pickle.dumps(domain))
        _require_same(_tasks(subject, again), expected, f"of a copy, pickled {when}")
        _tasks(subject, domain, SEEDS)
