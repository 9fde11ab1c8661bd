"""Where an aggregator of TorchJD acts: on the number of tasks, on the Gramian, or on the rows themselves."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from gradhomog import Evidence, Homogenizer, OptionError, PluginRunError, Rows
from gradhomog_plugins._torchjd.aggregators import Recipe, aggregators, choose, library, version
from gradhomog_plugins._torchjd.memory import Memory
from gradhomog_plugins._torchjd.rows import concatenated, repeated, widest

Scale = Literal["mean", "paper"]

COUNTERS = ("Constant", "Mean", "Random", "Sum")
"""Those whose weights depend on the number of rows, and not on what is in them."""

CPU = torch.device("cpu")


def bridge(aggregator: str, options: Mapping[str, Any], scale: Scale, seed: int) -> Bridge:
    """The homogenizer that asks one of TorchJD's aggregators, at the earliest stage at which it can answer."""
    recipe = choose(aggregator, options)
    kind, module = aggregators()[aggregator], library()
    if aggregator in COUNTERS:
        return ByNumber(recipe, scale, seed)
    if issubclass(kind, module.GramianWeightedAggregator):
        return ByGramian(recipe, scale, seed)
    if issubclass(kind, module.WeightedAggregator):
        return ByMatrix(recipe, scale, seed)
    return OnRows(recipe, scale, seed)


class Bridge(Homogenizer, ABC):
    """Asks an aggregator of TorchJD, and keeps for it what it does not: its random numbers and its memory."""

    carried = ("generator", "memory")

    def __init__(self, recipe: Recipe, scale: Scale, seed: int) -> None:
        self.recipe, self.scale, self.seed = recipe, scale, seed
        self.generator = torch.Generator().manual_seed(seed)
        self.aggregator = recipe.make()
        self._memory = Memory(recipe.name, self.aggregator)
        self._factors: dict[int, float] = {}

    @property
    def memory(self) -> dict[str, Any]:
        """What the aggregator keeps from step to step: nothing, for most."""
        return self._memory.read()

    @memory.setter
    def memory(self, state: Mapping[str, Any]) -> None:
        self._memory.write(state, CPU)

    # Solvers do not all copy or pickle, and an aggregator is made in a moment.
    def __reduce__(self) -> tuple[Any, ...]:
        return bridge, (self.recipe.name, self.recipe.options, self.scale, self.seed), self.state_dict()

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.load_state_dict(state)

    def factor(self, tasks: int) -> float:
        """What the aggregator makes of N identical rows of norm one, in multiples of such a row; 1 at its own scale."""
        if self.scale == "paper":
            return 1.0
        if tasks not in self._factors:
            fresh, generator = self.recipe.make(tasks), torch.Generator().manual_seed(0)
            times = self._answer(fresh, torch.ones(tasks, 1, dtype=torch.float64), generator).item()
            if not 0 < times < math.inf:
                raise OptionError(
                    f"torchjd: {self.recipe.name} makes {times:g} times their row of {tasks} identical rows, which "
                    "cannot be scaled to that row. Use scale='paper', or other `options`."
                )
            self._factors[tasks] = times
        return self._factors[tasks]

    def ask(self, function: Callable[[Tensor], Tensor], shown: Tensor) -> Tensor:
        """What the aggregator, or its weighting, answers to what it is shown, at the scale asked for."""
        tasks = shown.shape[0]
        if self.recipe.counts and self.aggregator.n_tasks != tasks:
            self._count(tasks)
        factor = self.factor(tasks)
        self._memory.follow(shown.device)
        return self._answer(function, shown, self.generator) / factor

    def _count(self, tasks: int) -> None:
        if self.memory["step"] > 0:
            raise OptionError(
                f"torchjd: {self.recipe.name} needs the same number of tasks at every step: {self.aggregator.n_tasks} "
                f"at the first, {tasks} now. Do without nonfinite='drop', or use another aggregator."
            )
        self.aggregator.n_tasks = tasks
        self.aggregator.reset()

    def _answer(self, function: Callable[[Tensor], Tensor], shown: Tensor, generator: torch.Generator) -> Tensor:
        try:
            with drawing_from(generator, shown.device):  # the graph is the host's to switch off
                answer = function(shown)
        except Exception as cause:
            raise self._refusal(f"raised {type(cause).__name__}", shown, f": {cause}") from cause
        if not bool(torch.isfinite(answer).all()):
            raise self._refusal("returned NaN or infinity", shown)
        return answer

    def _refusal(self, what: str, shown: Tensor, reason: str = "") -> PluginRunError:
        tasks = f"{shown.shape[0]} task{'s' if shown.shape[0] > 1 else ''}"
        return PluginRunError(
            f"torchjd: {self.recipe.name} of TorchJD {version()} {what} for {tasks}{reason or '.'} "
            "The bridge hands its answers on as they are: change the `options`, or use another aggregator."
        )


class ByNumber(Bridge):
    """Weights that depend on the number of tasks alone: no statistic is read."""

    def mix(self, evidence: Evidence) -> Tensor:
        column = torch.ones(evidence.tasks, 1, dtype=torch.float64)
        return evidence.tasks * self.ask(self.aggregator.weighting, column)


class ByGramian(Bridge):
    """Weights that depend on the Gramian, which is shown in the precision in which it is known, that of the rows.

    AlignedMTL, IMTLG and PCD take as rank what stands out from the rounding of the Gramian's dtype. In float64 they
    would take the rounding of float32 rows for rank, and divide by it.
    """

    def mix(self, evidence: Evidence) -> Tensor:
        # No more than a look, but where another homogenizer has mixed before it forms the rows.
        precision = torch.promote_types(widest(evidence.rows), torch.float32)
        gramian = evidence.gramian().to(CPU, precision)
        return evidence.tasks * self.ask(self.aggregator.gramian_weighting, gramian).double()


class ByMatrix(Bridge):
    """Weights that depend on the coordinates of the rows."""

    def mix(self, evidence: Evidence) -> Tensor:
        return evidence.tasks * self.ask(self.aggregator.weighting, concatenated(evidence.rows)).double()


class OnRows(Bridge):
    """A direction that is no combination of the rows with weights: every row becomes it."""

    def rows(self, jacobian: Rows) -> Rows:
        matrix = concatenated(jacobian)
        if "pref_vector" in self.recipe.arguments:  # of ConFIG, multiplied with the rows as they are
            preference = self.recipe.arguments["pref_vector"]
            self.aggregator.pref_vector = None if preference is None else preference.to(matrix)
        return repeated(self.ask(self.aggregator, matrix), jacobian)


@contextmanager
def drawing_from(generator: torch.Generator, device: torch.device) -> Iterator[None]:
    """Within the context torch's global generator goes on where this one stands; afterwards it is where it was."""
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(cuda):
        for each in cuda:
            with torch.cuda.device(each):
                torch.cuda.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        torch.default_generator.set_state(generator.get_state())
        yield
        generator.set_state(torch.default_generator.get_state())
