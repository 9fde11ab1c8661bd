"""Checks of training runs: they continue from a saved, pickled or copied plugin, in constant memory."""

import contextlib
import copy
import functools
import gc
import io
import itertools
import pickle
from collections import deque
from typing import Any

import torch

from gradhomog.step.pipelines import Pipeline
from gradhomog.testing.assertions import require_all_equal
from gradhomog.testing.check_results import CheckFailure, check, full_or_fast
from gradhomog.testing.snapshots import seeded_global_generators, tensor_bytes
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
    torch.save([part.state_dict() for part in _trained(subject)], file)
    file.seek(0)
    fresh = subject.begin(seed=1)
    try:
        states = torch.load(file, weights_only=True)
    except pickle.UnpicklingError as cause:
        raise CheckFailure(
            f"its state holds other objects than tensors, numbers, strings, lists and dicts: {cause}"
        ) from cause
    for part, state in zip(fresh, states, strict=True):
        part.load_state_dict(state)
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


@check("homogenizers", "learners")
def memory_constant(subject: Any) -> None:
    """Over 200 steps, 20 of a learner, neither the tensors of the process nor the plugin grow.

    Sizes are read after a fifth, three fifths and all of the steps. Growth in both halves is a leak; a window that is
    filled once is not. The plugin's size is that of its pickle and of pickles of its classes' attributes, because a
    count of Python's allocations would include those of PyTorch's wrappers. A learner predicts after every four steps.
    """
    # Rounds of `STEPS` steps. A counter above 255 needs one more byte in a pickle; a learner may have several.
    rounds, noise = (1, 8.0) if subject.kind == "learners" else (full_or_fast(10, 2), 0.5)
    run, sizes = subject.begin(), []
    gc.freeze()  # excludes the objects that exist now: a count takes 0.05 s instead of 0.5
    try:
        for count in (rounds, 2 * rounds, 2 * rounds):
            for _ in range(count):
                subject.train(run)
            sizes.append((tensor_bytes(), _pickled_bytes(run)))
    finally:
        gc.unfreeze()
    for what, series in zip(
        ("the tensors of the process grow", "the object grows"), zip(*sizes, strict=True), strict=True
    ):
        growth = min((after - before) / (2 * rounds * STEPS) for before, after in itertools.pairwise(series))
        if growth > noise:
            raise CheckFailure(f"{what} by {growth:.0f} bytes with every step")


def _pickled_bytes(run: Any) -> int:
    """Return the size of a pipeline, or of a learner with its optimizer, and of containers in their classes."""
    parts = run[0] if isinstance(run[0], Pipeline) else run
    owners = dict.fromkeys(owner for part in parts for owner in type(part).__mro__)
    containers = (list, dict, set, deque)
    shared = [value for owner in owners for value in vars(owner).values() if isinstance(value, containers)]
    size = 0
    for value in (run, *shared):
        with contextlib.suppress(Exception):  # another check reports values that cannot be pickled
            size += len(pickle.dumps(value))
    return size
