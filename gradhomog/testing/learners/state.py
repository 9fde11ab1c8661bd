"""State: made alike, saved, pickled or copied in mid-training, everything goes on bit for bit the same."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import torch
from torch import Tensor

from gradhomog.learners import Learner
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.comparing import same
from gradhomog.testing.generators import seeded
from gradhomog.testing.learners.spies import Opinion
from gradhomog.testing.learners.subject import LearnerSubject

STEPS = 3
Training = tuple[Learner, torch.optim.Optimizer]


def _begin(subject: LearnerSubject, seed: int = 0) -> Training:
    made = subject.learner([Opinion()], seed=seed)
    return made, torch.optim.Adam(made.parameters(), lr=0.05)


def _train(subject: LearnerSubject, training: Training, start: int = 0) -> dict[str, Tensor]:
    """All that some steps give: losses, parameters, a prediction."""
    made, outer = training
    found: dict[str, Tensor] = {}
    for step in range(start, start + STEPS):
        found[f"the losses of step {step + 1}"] = made.step(subject.batch(seed=step), outer).losses
    found |= {f"`{name}`": parameter.detach().clone() for name, parameter in made.named_parameters().items()}
    task = subject.task(9)
    return {**found, "a prediction": made.predict(task.support_x, task.support_y, task.query_x)}


def _judge_same(found: dict[str, Tensor], expected: dict[str, Tensor], how: str) -> None:
    for what, value in expected.items():
        same(found[what], value, f"{what} {how}")


@check("learners")
def same_seed_same_answer(subject: LearnerSubject) -> None:
    """Two made alike give the same steps and predictions, bit for bit, whatever the global generators are."""
    found = []
    for seed in (1, 2):
        with seeded(seed):
            found.append(_train(subject, _begin(subject)))
    _judge_same(found[1], found[0], "of two made alike")


def _goes_on(subject: LearnerSubject, again: Callable[[Training], Training], how: str) -> None:
    first = _begin(subject)
    _train(subject, first)
    second = again(first)
    expected, found = (_train(subject, training, STEPS) for training in (first, second))
    _judge_same(found, expected, f"after the learner was {how} in mid-training")


@check("learners")
def resumes_from_state_dict(subject: LearnerSubject) -> None:
    """Its `state_dict`, saved by `torch.save` and read with `weights_only=True`, continues a fresh one bit for bit.

    The fresh one's network is initialised otherwise; the optimizer's state is saved beside.
    """

    def again(training: Training) -> Training:
        file = io.BytesIO()
        torch.save([one.state_dict() for one in training], file)
        file.seek(0)
        try:
            states = torch.load(file, weights_only=True)
        except pickle.UnpicklingError as cause:
            raise CheckFailure(
                f"its state holds more than tensors, numbers, texts, lists and dicts: {cause}"
            ) from cause
        fresh = _begin(subject, seed=1)
        fresh[0].load_state_dict(states[0])
        fresh[1].load_state_dict(states[1])
        return fresh

    _goes_on(subject, again, "saved and loaded")


@check("learners")
def resumes_from_pickle(subject: LearnerSubject) -> None:
    """Pickled in mid-training with its optimizer, as a worker process would be handed it, it goes on the same."""
    _goes_on(subject, lambda training: pickle.loads(pickle.dumps(training)), "pickled")


@check("learners")
def resumes_from_copy(subject: LearnerSubject) -> None:
    """A `copy.deepcopy` in mid-training goes on bit for bit the same, and shares no state with the original."""
    _goes_on(subject, copy.deepcopy, "copied")
    original, alone = _begin(subject), _begin(subject)
    for training in (original, alone):
        _train(subject, training)
    _train(subject, copy.deepcopy(original), 100)
    _judge_same(
        _train(subject, original, STEPS), _train(subject, alone, STEPS), "after a copy was trained on: they share state"
    )
