"""Base class of small generated problems: one network without heads of tasks, scored on held-out examples."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradhomog import Evaluation, Problem, ProblemRun

Splits = Mapping[str, tuple[Tensor, ...]]
"""Tensors `[n, ...]` of the examples of "train", "validation" and "test"; the first tensor has the inputs."""


class HeldOutProblem(Problem):
    """A network of which all tasks share all parameters; scores are errors on held-out examples, lower is better.

    The examples are a function of the options only. The network and the random numbers of the steps are functions of
    the seed of the run.

    Args:
        run: settings of the run.
        tasks: names of the tasks.
        splits: the examples; no example is in two splits.
        network: returns the network, initialized from PyTorch's global generator.
        notes: sentences for the report.
    """

    metric = "error"

    def __init__(
        self, run: ProblemRun, tasks: Sequence[str], splits: Splits, network: Callable[[], nn.Module], *notes: str
    ) -> None:
        self.seed, self.device, self.tasks = run.seed, run.device, tuple(tasks)
        self.homogenizers = run.pipeline()
        self.splits = {name: tuple(part.to(run.device) for part in parts) for name, parts in splits.items()}
        self.network = initialized(network, run.seed).to(run.device)
        counts = ", ".join(f"{len(parts[0])} for {name}" for name, parts in splits.items())
        self.notes = [*notes, f"Examples: {counts}."]

    @abstractmethod
    def scores(self, *split: Tensor) -> Mapping[str, float]:
        """Return the errors by name on the tensors of a split; called without gradients."""

    def random(self, index: int) -> torch.Generator:
        """Return the generator of the random numbers of step `index`, on the CPU."""
        # PyTorch's generator reads 32 bits of its seed; an odd factor spreads the seeds of runs over them.
        return torch.Generator().manual_seed((self.seed * 0x9E3779B1 + index) % 2**32)

    def batch(self, count: int, size: int, random: torch.Generator) -> Tensor:
        """Return the indices of `size` examples, drawn with replacement from `count`."""
        return torch.randint(count, (size,), generator=random).to(self.device)

    def validate(self) -> Evaluation:
        return self._evaluate("validation")

    def test(self, states: Sequence[Mapping[str, Any]]) -> Evaluation:
        return self._evaluate("test")

    @torch.no_grad()
    def _evaluate(self, split: str) -> Evaluation:
        self.network.eval()
        scores = self.scores(*self.splits[split])
        self.network.train()
        return Evaluation([*scores.values()], [*scores.values()], [*scores], self.metric)


def initialized(network: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a network initialized from this seed, without an effect on the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return network()


def divide(counts: Sequence[int], *parts: NDArray[Any]) -> dict[str, tuple[Tensor, ...]]:
    """Return the first, next and last examples of arrays `[n, ...]` as training, validation and test."""
    pieces = zip(*(torch.from_numpy(part).split_with_sizes(list(counts)) for part in parts), strict=True)
    return dict(zip(("train", "validation", "test"), pieces, strict=True))
