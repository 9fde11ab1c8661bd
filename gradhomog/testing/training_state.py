"""Checks that training continues identically from a saved, pickled or copied homogenizer or learner."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from gradhomog.testing.check import CheckFailure, check
from gradhomog.testing.comparisons import require_equal
from gradhomog.testing.snapshots import seeded_global_generators

STEPS = 4  # steps of one call of `train`; a continued run starts at this number


class Trainable(Protocol):
    """A subject whose training can be saved and continued."""

    def begin(self, seed: int = 0) -> Any:
        """Return a fresh run, initialized from a seed."""

    def train(self, run: Any, start: int = 0) -> dict[str, Tensor]:
        """Run `STEPS` steps from number `start` and return all results by name. The number determines a step's data."""

    def save(self, run: Any) -> Any: ...
    def load(self, run: Any, state: Any) -> None: ...


def _require_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], when: str) -> None:
    for name, value in expected.items():
        require_equal(found[name], value, f"{name} {when}")


def _require_continued(subject: Trainable, duplicate: Callable[[Any], Any], how: str) -> None:
    first = subject.begin()
    subject.train(first)
    second = duplicate(first)
    expected, found = (subject.train(run, start=STEPS) for run in (first, second))
    _require_same(found, expected, f"after it was {how} during training")


@check("homogenizers", "learners")
def same_seed_same_results(subject: Trainable) -> None:
    """Two instances with the same options give exactly equal results for any state of the global generators."""
    found = []
    for seed in (1, 2):
        with seeded_global_generators(seed):
            found.append(subject.train(subject.begin()))
    _require_same(found[1], found[0], "of two instances with the same options")


@check("homogenizers", "learners")
def resumes_from_state_dict(subject: Trainable) -> None:
    """A fresh instance continues exactly from a `state_dict` that was saved and read with `weights_only=True`.

    `torch.save` and `torch.load` are used. A learner's fresh network is initialized from another seed, and the
    optimizer's state is saved with it.
    """

    def save_and_load(run: Any) -> Any:
        file = io.BytesIO()
        torch.save(subject.save(run), file)
        file.seek(0)
        fresh = subject.begin(seed=1)
        try:
            subject.load(fresh, torch.load(file, weights_only=True))
        except pickle.UnpicklingError as cause:
            raise CheckFailure(
                f"its state holds other objects than tensors, numbers, strings, lists and dicts: {cause}"
            ) from cause
        return fresh

    _require_continued(subject, save_and_load, "saved and loaded")


@check("homogenizers", "learners")
def resumes_from_pickle(subject: Trainable) -> None:
    """An instance that is pickled during training, as for a worker process, continues exactly."""
    _require_continued(subject, lambda run: pickle.loads(pickle.dumps(run)), "pickled")


@check("homogenizers", "learners")
def resumes_from_copy(subject: Trainable) -> None:
    """A `copy.deepcopy` taken during training continues exactly and shares no state with the original."""
    _require_continued(subject, copy.deepcopy, "copied")
    original, alone = subject.begin(), subject.begin()
    for run in (original, alone):
        subject.train(run)
    subject.train(copy.deepcopy(original), start=100)
    found, expected = subject.train(original, start=STEPS), subject.train(alone, start=STEPS)
    _require_same(found, expected, "after a copy was trained: the copy and the original share state")
