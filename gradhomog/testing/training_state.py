"""Checks that training continues identically from a saved, pickled or copied homogenizer or learner."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from typing import Any

import torch

from gradhomog.testing.assertions import require_all_equal
from gradhomog.testing.check_results import CheckFailure, check
from gradhomog.testing.snapshots import seeded_global_generators
from gradhomog.testing.subjects import STEPS


def _trained(subject: Any) -> Any:
    run = subject.begin()
    subject.train(run)
    return run


@functools.lru_cache(maxsize=8)
def _uninterrupted(subject: Any) -> Any:
    """The results of the second half of a run that is never saved, pickled or copied; computed once."""
    return subject.train(_trained(subject), start=STEPS)


def _require_continued(subject: Any, run: Any, how: str) -> None:
    """Raise unless a run continues like one that was never interrupted."""
    require_all_equal(subject.train(run, start=STEPS), _uninterrupted(subject), f"{{}} after {how}")


@check("homogenizers", "learners")
def same_seed_same_results(subject: Any) -> None:
    """Two instances with the same options give exactly equal results for any state of the global generators."""
    found = []
    for seed in (1, 2):
        with seeded_global_generators(seed):
            found.append(subject.train(subject.begin()))
    require_all_equal(found[1], found[0], "{} of two instances with the same options")


@check("homogenizers", "learners")
def resumes_from_state_dict(subject: Any) -> None:
    """A fresh instance continues exactly from a `state_dict` that was saved and read with `weights_only=True`.

    `torch.save` and `torch.load` are used. A learner's fresh network is initialized from another seed, and the
    optimizer's state is saved with it.
    """

    file = io.BytesIO()
    torch.save(subject.save(_trained(subject)), file)
    file.seek(0)
    fresh = subject.begin(seed=1)
    try:
        subject.load(fresh, torch.load(file, weights_only=True))
    except pickle.UnpicklingError as cause:
        raise CheckFailure(
            f"its state holds other objects than tensors, numbers, strings, lists and dicts: {cause}"
        ) from cause
    _require_continued(subject, fresh, "it was saved and loaded during training")


@check("homogenizers", "learners")
def resumes_from_pickle(subject: Any) -> None:
    """An instance that is pickled during training, as for a worker process, continues exactly."""
    _require_continued(subject, pickle.loads(pickle.dumps(_trained(subject))), "it was pickled during training")


@check("homogenizers", "learners")
def resumes_from_copy(subject: Any) -> None:
    """A `copy.deepcopy` taken during training continues exactly and shares no state with the original."""
    original = _trained(subject)
    _require_continued(subject, copy.deepcopy(original), "it was copied during training")
    _require_continued(subject, original, "a copy was trained: the copy and the original share state")
