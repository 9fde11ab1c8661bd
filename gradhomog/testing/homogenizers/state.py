"""State: saved, pickled or copied in mid-training, everything goes on bit for bit the same."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import torch

from gradhomog.errors import NonfiniteError
from gradhomog.pipelines import Pipeline
from gradhomog.testing.checking import CheckFailure, check
from gradhomog.testing.comparing import same
from gradhomog.testing.homogenizers.subject import HomogenizerSubject

STEPS = 4


def _goes_on(subject: HomogenizerSubject, again: Callable[[Pipeline], Pipeline], how: str) -> None:
    first = subject.pipeline()
    subject.exercise(first, STEPS)
    second = again(first)
    expected, found = (subject.exercise(pipe, STEPS, start=STEPS) for pipe in (first, second))
    for step, (one, two) in enumerate(zip(found, expected, strict=True)):
        same(one, two, f"output {step} after it was {how} in mid-training")


@check("homogenizers")
def resumes_from_state_dict(subject: HomogenizerSubject) -> None:
    """Its `state_dict`, saved by `torch.save` and read with `weights_only=True`, continues a fresh one bit for bit.

    And it is a copy, which neither who gave it nor who took it goes on writing to.
    """

    def again(pipe: Pipeline) -> Pipeline:
        file = io.BytesIO()
        torch.save(pipe.state_dict(), file)
        file.seek(0)
        fresh = subject.pipeline()
        try:
            fresh.load_state_dict(torch.load(file, weights_only=True))
        except pickle.UnpicklingError as cause:
            raise CheckFailure(
                f"its state holds more than tensors, numbers, texts, lists and dicts: {cause}"
            ) from cause
        return fresh

    _goes_on(subject, again, "saved and loaded")

    first = subject.pipeline()
    subject.exercise(first, STEPS)
    state = first.state_dict()
    expected = subject.exercise(first, STEPS, start=STEPS)
    for advice in ("saved, who saved it goes on", "loaded, who loaded it goes on"):
        fresh = subject.pipeline()
        fresh.load_state_dict(state)
        for one, two in zip(subject.exercise(fresh, STEPS, start=STEPS), expected, strict=True):
            same(one, two, f"the state after it was {advice} writing to it; copy what is held. Outputs")


@check("homogenizers")
def resumes_from_pickle(subject: HomogenizerSubject) -> None:
    """Pickled in mid-training, as a worker process would be handed it, it goes on bit for bit the same."""
    _goes_on(subject, lambda pipe: pickle.loads(pickle.dumps(pipe)), "pickled")


@check("homogenizers")
def resumes_from_copy(subject: HomogenizerSubject) -> None:
    """A `copy.deepcopy` in mid-training goes on bit for bit the same, and shares no state with the original."""
    _goes_on(subject, copy.deepcopy, "copied")

    original = subject.pipeline()
    subject.exercise(original, STEPS)
    subject.exercise(copy.deepcopy(original), STEPS, start=100)
    alone = subject.pipeline()
    subject.exercise(alone, STEPS)
    pairs = zip(subject.exercise(original, 2, start=STEPS), subject.exercise(alone, 2, start=STEPS), strict=True)
    for one, two in pairs:
        same(one, two, "a direction after a copy was trained on: they share state")


@check("homogenizers", claim="stateful")
def stateful(subject: HomogenizerSubject) -> None:
    """It carries something from step to step: `state_dict` is not empty."""
    if not any(subject.pipeline().state_dict().values()):
        raise CheckFailure("`state_dict` is empty")


@check("homogenizers", claim="momentum")
def momentum(subject: HomogenizerSubject) -> None:
    """What an earlier step showed is in the next: after rows that are all g, rows that are all h do not give h."""
    first, second = torch.eye(2, 5, dtype=torch.float64)
    pipe = subject.pipeline()
    subject.combine(first.repeat(3, 1), pipe=pipe)
    found = subject.combine(second.repeat(3, 1), pipe=pipe)
    if torch.allclose(torch.as_tensor(found), second, rtol=1e-9, atol=1e-12):
        raise CheckFailure("identical rows give that row whatever the step before showed", direction=found)


@check("homogenizers")
def nonfinite_policy(subject: HomogenizerSubject) -> None:
    """A task with NaN or infinity raises and leaves all state as it was; with `nonfinite="drop"` the others go on.

    In the first step, and between steps of all tasks.
    """
    rows = torch.randn(4, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for value in (torch.nan, torch.inf):
        broken = rows.clone()
        broken[2, 3] = value
        pipe, untouched = subject.pipeline(), subject.pipeline()
        for each in (pipe, untouched):
            subject.combine(rows, pipe=each, steps=2)
        try:
            subject.combine(broken, pipe=pipe)
        except NonfiniteError:
            pass
        else:
            raise CheckFailure(f"a row with {value} is answered with a direction", jacobian=broken)
        one, two = (subject.combine(rows, pipe=after, steps=2) for after in (pipe, untouched))
        assert isinstance(one, torch.Tensor)
        assert isinstance(two, torch.Tensor)
        same(one, two, f"a direction after a step was refused because of {value}: state has changed")
        dropping = subject.pipeline(nonfinite="drop")
        for given in (broken, rows, broken, rows):
            direction = subject.combine(given, pipe=dropping)
            if not isinstance(direction, torch.Tensor) or not bool(torch.isfinite(direction).all()):
                raise CheckFailure(f"with nonfinite='drop' the direction of the other tasks is not finite ({value})")
