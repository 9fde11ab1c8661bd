"""Chance: the generator that is given decides, and nothing else."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

from gradhomog.domains import Domain, Split
from gradhomog.tasks import Task
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.domains.looking import alike
from gradhomog.testing.domains.subject import DomainSubject, draw, generator
from gradhomog.testing.generators import positions, seeded

SEEDS = range(10)
Tasks = dict[tuple[Split, int], Task]
"""By split and seed."""


def _tasks(subject: DomainSubject, domain: Domain, seeds: Sequence[int] = range(3)) -> Tasks:
    """A task of each seed from each split that is served, drawn in this order."""
    return {
        (split, seed): draw(domain, split, seed, numbers) for seed in seeds for split, numbers in subject.served.items()
    }


def _judge_alike(found: Tasks, expected: Tasks, how: str) -> None:
    for split, seed in expected:
        if not alike(found[split, seed], expected[split, seed]):
            raise CheckFailure(f"the task of seed {seed} and split {split!r} is another one {how}")


@check("domains")
def global_generators_untouched(subject: DomainSubject) -> None:
    """Making it and drawing from it leave the global generators of torch, numpy and Python where they are."""
    for seed in (11, 12):  # who seeds a global generator himself does not leave both as they were
        with seeded(seed):
            before = positions()
            _tasks(subject, subject.another())
            after = positions()
        if moved := [name for name in before if before[name] != after[name]]:
            raise CheckFailure(
                f"it uses the global generator of {', '.join(moved)}: draw from the `random` that `sample` is given"
            )


@check("domains")
def generator_decides(subject: DomainSubject) -> None:
    """The generator's seed alone decides a task, bit for bit.

    Two made alike agree, whatever the global generators are, and whatever was drawn before.
    """
    found = []
    for seed in (1, 2):
        with seeded(seed):
            found.append(_tasks(subject, subject.another()))
    _judge_alike(found[1], found[0], "of two made alike, with other global generators")
    domain = subject.another()
    split, numbers = next(iter(subject.served.items()))
    for seed in range(7):  # an odd number: what goes round must not be back where it was
        draw(domain, split, seed, numbers)
    _judge_alike(_tasks(subject, domain, [2, 1, 0]), found[0], "after others were drawn")


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
            if all(alike(tasks[0], other) for other in tasks[1:]):
                raise CheckFailure(f"{len(tasks)} {how} give the same task of the split {split!r}")


@check("domains")
def pickled(subject: DomainSubject) -> None:
    """Pickled, as a worker process is handed it, it draws the same tasks; so it does after it has drawn some."""
    domain, expected = subject.another(), _tasks(subject, subject.domain)
    for when in ("as it was made", "after it was drawn from"):
        again = pickle.loads(pickle.dumps(domain))
        _judge_alike(_tasks(subject, again), expected, f"of a copy, pickled {when}")
        _tasks(subject, domain, SEEDS)
