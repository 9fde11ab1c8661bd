"""One step on a matrix of gradients: homogenizers by name, beside TorchJD's and the least that a step can take."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

import gradhomog
from gradhomog import expression
from gradhomog.experiments.profiling import combine_peers, table
from gradhomog.experiments.profiling.inputs import Gradients
from gradhomog.experiments.profiling.kernel import Kernel, Trial
from gradhomog.experiments.profiling.loadable import loadable
from gradhomog.experiments.profiling.timing import Work
from gradhomog.jacobian import arithmetic

SHAPES = tuple((tasks, params) for params in (100_000, 1_000_000) for tasks in (2, 4, 8, 16))
"""10⁷ parameters are left to `--shape`: with 16 tasks what is drawn takes 1.3 GB, and some peers twice that again."""

EXPRESSIONS = (
    "none", "pcgrad", "gradvac", "mgda", "upgrad", "dualproj", "cagrad", "imtl_g", "nash_mtl", "fairgrad",
    "aligned_mtl", "config", "graddrop", "gradnorm",
)  # fmt: skip

FLOOR, AGAIN, READ, PLAIN = "floor", "floor again", "weights @ J", "J @ J.T, weights @ J"
NORMS, NORMS_READ = "norms", "norms, weights @ J"


class Source:
    """Gradients of every round: normal numbers that are drawn once, mixed anew.

    J = (I + M/√tasks) Z with Z drawn once and a normal M of every round: with another problem in each, of rows of
    unlike norms that agree and conflict, at a fraction of the time that drawing J would take. J is written where that
    of the round before was. Memory: Z and J, from the first round on.
    """

    def __init__(self, tasks: int, params: int) -> None:
        self.tasks, self.params = tasks, params
        self._held: tuple[Tensor, Tensor] | None = None

    def __call__(self, number: int) -> Gradients:
        if self._held is None:
            noise = torch.randn(self.tasks, self.params, generator=torch.Generator().manual_seed(0))
            self._held = noise, torch.empty_like(noise)
        noise, mixed = self._held
        random = torch.Generator().manual_seed(number + 1)
        mixing = torch.eye(self.tasks) + torch.randn(self.tasks, self.tasks, generator=random) / self.tasks**0.5
        torch.mm(mixing, noise, out=mixed)
        return Gradients(mixed, 0.5 + torch.rand(self.tasks, generator=random))


class Ours:
    """One whole step of a pipeline."""

    def __init__(self, text: str) -> None:
        self.pipe = gradhomog.pipeline(text)

    def __call__(self, given: Gradients) -> Tensor:
        direction = self.pipe.combine(given.rows, losses=given.losses)
        assert isinstance(direction, Tensor)
        return direction


class Least:
    """What a step cannot do without: a statistic of the rows, and one combination of them, here their mean."""

    def __init__(self, tasks: int) -> None:
        self.weights = torch.full((tasks,), 1 / tasks)

    def floor(self, given: Gradients) -> tuple[Tensor, Tensor]:
        return arithmetic.gramian(given.rows), self.read(given)

    def plain(self, given: Gradients) -> tuple[Tensor, Tensor]:
        return given.rows @ given.rows.T, self.read(given)

    def read(self, given: Gradients) -> Tensor:
        return self.weights @ given.rows

    def norms(self, given: Gradients) -> Tensor:
        return arithmetic.squared_norms(given.rows)

    def norms_read(self, given: Gradients) -> tuple[Tensor, Tensor]:
        return self.norms(given), self.read(given)


def works(texts: Sequence[str], tasks: int) -> tuple[dict[str, Work], dict[str, str], list[str]]:
    """What is timed by label, the label of the peer of each that has one, and lines about what is left out.

    Raises:
        GradhomogError: one of `texts` names nothing.
    """
    least = Least(tasks)
    # The floors apart, so that neither finds its own code in the processor's cache.
    found: dict[str, Work] = {FLOOR: least.floor, PLAIN: least.plain, READ: least.read, AGAIN: least.floor}
    peers: dict[str, str] = {}
    chosen, left_out = loadable(texts, EXPRESSIONS)
    for text in chosen:
        found[text] = Ours(text)
        if (name := _alone(text)) == "gradnorm":
            found.update({NORMS: least.norms, NORMS_READ: least.norms_read})
            peers[text] = NORMS_READ
        elif name in combine_peers.NAMES:
            peer = combine_peers.NAMES[name]
            peers[text] = f"torchjd {peer}"
            if peers[text] in found:
                continue
            try:
                found[peers[text]] = combine_peers.peer(peer, tasks)
            except ImportError as error:
                left_out.append(str(error))
    return found, peers, list(dict.fromkeys(left_out))


def _alone(text: str) -> str:
    """The name of the only homogenizer of a text, `none` for none; nothing of several."""
    members = expression.parse(text)
    return "none" if not members else members[0][0] if len(members) == 1 else ""


def _trial(texts: Sequence[str], shape: Sequence[int]) -> Trial:
    tasks, params = shape
    made, peers, left_out = works(texts, tasks)
    return Trial(
        made,
        Source(tasks, params),
        (FLOOR,),
        f"one step on J, the gradients of {tasks} task{'s' if tasks > 1 else ''} by {params:,} parameters",
        (
            f"{FLOOR}: the Gramian of J in the fastest way known, and weights @ J with weights that are there already.",
            f"{AGAIN}: the same work; how far it is from × 1.00 is the error of this measurement.",
            f"to {FLOOR}, over {FLOOR}: median over rounds of its time by {FLOOR}'s, and less it, in the same round.",
            f"to peer: to TorchJD's of that name (gradnorm: to {NORMS_READ}), in the rounds that both were in.",
            table.INTERVAL_NOTE,
            f"{table.SHARE_NOTE} Each round has another J; the first does not count.",
            f"{table.MEMORY_NOTE};",
            f"others than {FLOOR}, which takes one gradient: what they add.",
            *left_out,
        ),
        at_least=2,  # the first step of some makes what later ones have
        paired=True,
        difference=True,
        peers=peers,
    )


combine_costs = Kernel(("tasks x params",), SHAPES, _trial)
"""Time and memory of one step on a matrix, beside the least that it can take and beside TorchJD."""
