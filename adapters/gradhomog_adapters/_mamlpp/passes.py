"""A row of several passes of the query set at once, with the feature cotangents of all of them together."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from gradhomog import TaskRow
from gradhomog_adapters._episodic.calculus import Lead, Score
from gradhomog_adapters._episodic.episode import Episode

Point = TypeVar("Point")


def joint_row(episode: Episode, lead: Lead[Point], score: Score[Point], at: dict[str, Tensor], passes: int) -> TaskRow:
    """`Calculus.row`, but the features are the last pass's and the cotangents the sums over passes.

    A homogenizer that moves query features moves them in every pass alike: the sum is the derivative by such a move.
    """
    if passes == 1:
        return episode.calculus.row(lead, score, at, episode.transform)

    def stacked(start: dict[str, Tensor]) -> tuple[Point, list[Tensor]]:
        point, features = lead(start)
        return point, [torch.stack(features)]

    def transform(features: Tensor) -> list[Tensor]:
        """All taps of all passes: first those before the transforms, then those between, then those after."""
        first = features[None]
        taps = [episode.transform(one) for one in first[0]]
        if len(taps[0]) == 1:
            return [first]
        between = [tap for one in taps for tap in one[1:-1]]
        return [first, *between, torch.stack([one[-1][0] for one in taps])[None]]

    found = episode.calculus.row(lead=stacked, score=lambda p, f: score(p, list(f[0])), at=at, transform=transform)
    found.features = [each[-1] for each in _by_tap(found.features, passes)]
    found.feature_grads = [torch.stack(each).sum(0) for each in _by_tap(found.feature_grads, passes)]
    return found


def _by_tap(given: object, passes: int) -> list[list[Tensor]]:
    """From `transform`'s order to a list of taps, each a list of passes."""
    assert isinstance(given, list)
    if len(given) == 1:
        return [list(given[0])]
    stages = (len(given) - 2) // passes
    between = given[1:-1]
    middle = [[between[number * stages + stage] for number in range(passes)] for stage in range(stages)]
    return [list(given[0]), *middle, list(given[-1])]
