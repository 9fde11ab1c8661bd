"""The states with the best validation scores of a training: those that are tested, alone or as an ensemble."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from gradhomog.experiments.results.events import Count


class BestState(TypedDict):
    """A `SavedState` in a checkpoint."""

    score: Any  # a float, possibly NaN
    step: Count
    state: dict[str, Any]


@dataclass(frozen=True)
class SavedState:
    """The state of a learner, with its validation score and its number of training steps."""

    score: float
    step: int
    state: Mapping[str, Any]


class BestStates:
    """The states with the best scores, best first. Of equal scores, the earlier state comes first.

    Args:
        count: maximum number of states, >= 1.
        better: called as `better(new, old)`; returns True if the score `new` is better than `old`.
    """

    def __init__(self, count: int, better: Callable[[float, float], bool]) -> None:
        self.count, self.better = count, better
        self.states: list[SavedState] = []

    @property
    def first(self) -> SavedState:
        return self.states[0]

    def add(self, score: float, step: int, state: Mapping[str, Any]) -> None:
        """Store a copy of the state if its score is among the best."""
        rank = next((i for i, saved in enumerate(self.states) if self.better(score, saved.score)), len(self.states))
        if rank < self.count:
            self.states.insert(rank, SavedState(score, step, copy.deepcopy(state)))
            del self.states[self.count :]

    def state_dict(self) -> list[BestState]:
        return [{"score": saved.score, "step": saved.step, "state": dict(saved.state)} for saved in self.states]

    def load_state_dict(self, state: Sequence[BestState]) -> None:
        self.states = [SavedState(float(saved["score"]), saved["step"], saved["state"]) for saved in state]
