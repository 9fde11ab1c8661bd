"""Time several callables in turn on the same inputs, so that a slow moment of the machine affects all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradhomog.errors import GradhomogError

Work = Callable[[Any], object]
"""Called with the input of a round; its result is dropped."""

Progress = Callable[[int, int], None]
"""Called after every round with the number of rounds done and the largest possible number."""


@dataclass
class Timings:
    """Seconds by work and round.

    Attributes:
        warm_up: rounds before this one count only for a work that has no later one.
        failures: by work, the message of the error after which it was not run again.
    """

    warm_up: int
    seconds: dict[str, dict[int, float]]
    failures: dict[str, str] = field(default_factory=dict)

    def counted(self, label: str) -> dict[int, float]:
        """The seconds of a work in the rounds that count."""
        every = self.seconds[label]
        return {number: taken for number, taken in every.items() if number >= self.warm_up} or every

    def pairs(self, label: str, reference: str) -> list[tuple[float, float]]:
        """The seconds of a work and of the reference, for each round that counts and has both."""
        others = self.counted(reference)
        return [(taken, others[number]) for number, taken in self.counted(label).items() if number in others]

    def ratios(self, label: str, reference: str) -> list[float]:
        """The seconds of a work divided by those of the reference, for each round of `pairs`."""
        return [taken / other for taken, other in self.pairs(label, reference)]


def order(labels: Sequence[str], number: int) -> list[str]:
    """The order of a round: the labels rotated by one place in every second round, and reversed in those between.

    Over 2 · len(labels) rounds every work takes every place twice, and a drift over two rounds cancels.
    """
    start = (number // 2) % len(labels)
    turned = [*labels[start:], *labels[:start]]
    return turned[::-1] if number % 2 else turned


def interleave(
    works: Mapping[str, Work],
    inputs: Callable[[int], Any],
    *,
    reference: str,
    rounds: int,
    seconds: float,
    at_least: int,
    together: bool,
    warm_up: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    synchronize: Callable[[], None] = lambda: None,
    progress: Progress = lambda done, most: None,
) -> Timings:
    """Run every work once per round, all on the same input, in an order that rotates.

    Args:
        works: by label.
        inputs: makes the input of round 0, 1, 2, …; not timed.
        reference: the work that others are compared with; if it fails, everything does.
        rounds: the largest number of rounds after the warm-up.
        seconds: budget. With `together` all works stop when it is spent, so all have the same rounds. Otherwise each
            has an equal share of it, so a slow one is timed less often than the others.
        at_least: rounds, warm-up included, that every work is run regardless of the budget.
        warm_up: number of first rounds, which do not count.
        synchronize: called before the clock is read, for devices that work asynchronously.

    Raises:
        GradhomogError: of the reference; the message of another work's error is in `failures`, and this work is left
            out from then on.
    """
    found = Timings(warm_up, {label: {} for label in works})
    spent = dict.fromkeys(works, 0.0)
    started = clock()

    def within_share(label: str, number: int) -> bool:
        last = found.seconds[label].get(number - 1)  # None: it was left out before, and stays so
        return last is not None and spent[label] + last <= seconds / len(works)

    for number in range(warm_up + rounds):
        spare = clock() - started < seconds
        chosen = [
            label
            for label in order(list(works), number)
            if label not in found.failures
            and (number < at_least or (spare if together else within_share(label, number)))
        ]
        if not chosen:
            break
        given = inputs(number)
        for label in chosen:
            synchronize()
            start = clock()
            try:
                works[label](given)
            except GradhomogError as error:
                if label == reference:
                    raise
                found.failures[label] = str(error)
                continue
            synchronize()
            found.seconds[label][number] = taken = clock() - start
            spent[label] += taken
        progress(number + 1, warm_up + rounds)
    return found
