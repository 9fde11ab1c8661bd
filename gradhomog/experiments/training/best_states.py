"""The best states of a training by validation, as many as are tested together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kept:
    """A learner's state, the step after which it was, and its validation score."""

    score: float
    step: int
    state: Mapping[str, Any]


class Best:
    """The states of the best scores, the best first; of equal scores the earlier.

    Args:
        count: how many, >= 1.
        better: whether a score, its first argument, is better than another.
    """

    def __init__(self, count: int, better: Callable[[float, float], bool]) -> None:
        self.count, self.better = count, better
        self.kept: list[Kept] = []

    @property
    def first(self) -> Kept:
        return self.kept[0]

    def offer(self, score: float, step: int, state: Mapping[str, Any]) -> None:
        """Keep a copy of a state, if its score is among the best."""
        place = next((i for i, known in enumerate(self.kept) if self.better(score, known.score)), len(self.kept))
        if place < self.count:
            self.kept.insert(place, Kept(score, step, copy.deepcopy(state)))
            del self.kept[self.count :]

    def state_dict(self) -> list[dict[str, Any]]:
        return [dict(vars(kept)) for kept in self.kept]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        self.kept = [Kept(**kept) for kept in state]
