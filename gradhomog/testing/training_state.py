"""Checks that training continues bit for bit the same from a saved, pickled or copied homogenizer or learner."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.comparing import same
from gradhomog.testing.snapshots import seeded

STEPS = 4  # of one call of `train`; later steps are numbered from there


class Trainable(Protocol):
    """A subject whose training can be saved and continued."""

    def begin(self, seed: int = 0) -> Any:
        """A fresh run, initialized by a seed."""

    def train(self, run: Any, start: int = 0) -> dict[str, Tensor]:
        """Some steps on data that depend on their number, from `start` on; all results by name."""

    def save(self, run: Any) -> Any: ...
    def load(self, run: Any, state: Any) -> None: ...


def _require_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], when: str) -> None:
    for name, value in expected.items():
        same(found[name], value, f"{name} {when}")


def _require_continued(subject: Trainable, again: Callable[[Any], Any], how: str) -> None:
    first = subject.begin()
    subject.train(first)
    second = again(first)
    expected, found = (subject.train(run, start=STEPS) for run in (first, second))
    _require_same(found, expected, f"after it was {how} in mid-training")


@check("homogenizers", "learners")
def same_seed_same_answer(subject: Trainable) -> None:
    """Two made alike give the same results, bit for bit, independently of the global generators."""
    found = []
    for seed in (1, 2):
        with seeded(seed):
            found.append(subject.train(subject.begin()))
    _require_same(found[1], found[0], "of two made alike")


@check("homogenizers", "learners")
def resumes_from_state_dict(subject: Trainable) -> None:
    """Its `state_dict`, saved by `torch.save` and read with `weights_only=True`, continues a fresh one bit for bit.

    A learner's fresh network is initialized by another seed; the optimizer's state is saved with it.
    """

    def again(run: Any) -> Any:
        file = io.BytesIO()
        torch.save(subject.save(run), file)
        file.seek(0)
        fresh = subject.begin(seed=1)
        try:
            subject.load(fresh, torch.load(file, weights_only=True))
        except pickle.UnpicklingError as cause:
            raise CheckFailure(
                f"its state holds more than tensors, numbers, texts, lists and dicts: {cause}"
            ) from cause
        return fresh

    _require_continued(subject, again, "saved and loaded")


@check("homogenizers", "learners")
def resumes_from_pickle(subject: Trainable) -> None:
    """Pickled in mid-training, as for a worker process, it continues bit for bit the same."""
    _require_continued(subject, lambda run: pickle.loads(pickle.dumps(run)), "pickled")


@check("homogenizers", "learners")
def resumes_from_copy(subject: Trainable) -> None:
    """A `copy.deepcopy` in mid-training continues bit for bit the same, and shares no state with the original."""
    _require_continued(subject, copy.deepcopy, "copied")
    original, alone = subject.begin(), subject.begin()
    for run in (original, alone):
        subject.train(run)
    subject.train(copy.deepcopy(original), start=100)
    found, expected = subject.train(original, start=STEPS), subject.train(alone, start=STEPS)
    _require_same(found, expected, "after a copy was trained: they share state")
