"""The Gramian of N task gradients in the memory of a few: N backward passes, run segment by segment in lockstep.

The graph is cut into segments between the losses and the parameters. All tasks are backpropagated through the first
segment, one after the other, and their gradients w.r.t. the tensors at the cut are kept; then through the second, and
so on. N gradients of the parameters of one segment exist at a time: they are multiplied with each other and freed.

    plain:     for i in tasks: row_i = grad(L_i, θ);  G = J Jᵀ
    lockstep:  for s in segments:
                   for i in tasks: c_i, rows_i = grad(cut_s, [cut_s+1, θ_s], c_i)
                   G += Σ over θ_s of rows rowsᵀ

PyTorch's engine runs each segment, so that any module, custom function or checkpoint is differentiated as usual.
"""

import functools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise, starmap
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from gradhomog.autograd.backward_passes import BackwardPasses
from gradhomog.autograd.derivatives import Gradients, copy_shared_gradients, plain_gradient
from gradhomog.autograd.loss_graph import AccumulateGrad, Edge, Reachability
from gradhomog.autograd.optimizer_metric import OptimizerMetric
from gradhomog.autograd.recomputed_modules import checkpoints
from gradhomog.errors import OptionError
from gradhomog.rows import Jacobian, PerTaskRows

PARTS = 16
"""Segments with a smaller part of the parameters save no memory: the direction takes a whole gradient."""


@dataclass(frozen=True)
class Segment:
    """A part of the graph through which all tasks are backpropagated before the next part.

    Attributes:
        nodes: its nodes.
        inputs: the edges to leaves and to later segments, with the tasks whose losses depend on them, as bits.
        complete: the edges of the shared parameters that no later segment uses.
    """

    nodes: Set[Any]
    inputs: Mapping[Edge, int]
    complete: Sequence[Edge]


class Lockstep:
    """N backward passes in lockstep through one graph.

    Args:
        outputs: for each task the tensors to differentiate: its loss, or the features.
        shared: the shared parameters by name.
        unshared: for each task the other leaves that its loss depends on.

    Attributes:
        peak: estimated bytes of all gradients of shared parameters and at cuts that exist at a time. About N times the
            bytes of the parameters if the graph has no cut: one compiled function, or a skip connection over all
            layers.
        segments: from the losses to the parameters.
        eps: the largest machine epsilon of the gradients.
    """

    def __init__(
        self, outputs: Sequence[Sequence[Tensor]], shared: Mapping[str, Tensor], unshared: Sequence[Sequence[Tensor]]
    ) -> None:
        self._shared = shared
        self._outputs = [[_edge(output) for output in some] for some in outputs]
        self._unshared = unshared
        self._names = {_edge(tensor): name for name, tensor in shared.items()}
        self._ends = self._names.keys() | {_edge(leaf) for leaves in unshared for leaf in leaves}
        ends = [*shared.values(), *(leaf for leaves in unshared for leaf in leaves)]
        reached = Reachability([output for some in outputs for output in some], leaves=ends)
        bits = reached.bits_of(ends)
        # Each node after those that use it.
        nodes = [x for x in reversed(reached.nodes) if reached.nodes[x] & bits and type(x) is not AccumulateGrad]
        graph = _Graph(nodes, self._outputs, self._ends)
        self.eps = graph.largest_eps()
        self.peak, cuts = graph.best_cuts({edge: _bytes(shared[name]) for edge, name in self._names.items()})
        self.segments = [graph.segment(start, stop, self._names.keys()) for start, stop in pairwise(cuts)]

    def gramians(
        self, output_grads: Sequence[Sequence[Tensor]], passes: BackwardPasses, scale: float = 1.0,
        metric: OptimizerMetric | None = None,
    ) -> tuple[dict[str, Tensor], list[Gradients]]:  # fmt: skip
        """Return the Gramian of each shared parameter, and each task's gradients of its unshared leaves.

        The graph is kept. A parameter without a Gramian was not used by any loss.

        Args:
            output_grads: for each task the gradients w.r.t. its outputs.
            scale: common factor of all rows, applied to the Gramians (squared).
            passes: those through the graph.
            metric: in which the inner products are computed.

        Returns:
            float64 `[tasks, tasks]` by name; gradients without `scale`.

        Raises:
            OptionError: see `BackwardPasses`.

        Cost: N backward passes.
        """
        tasks = len(self._outputs)
        gradients: list[dict[Edge, Tensor]] = [{} for _ in range(tasks)]
        for found, edges, grads in zip(gradients, self._outputs, output_grads, strict=True):
            _add(found, edges, grads)
        gramians: dict[str, Tensor] = {}
        arrived: dict[Edge, Tensor] = {}
        with self._hooks_run_once(arrived):
            for segment in self.segments:
                for task, found in enumerate(gradients):
                    inputs = [edge for edge, users in segment.inputs.items() if users >> task & 1]
                    self._pass_through(segment, inputs, found, arrived, passes)
                gramians.update(self._reduce(segment.complete, gradients, scale, metric))
        heads: list[Gradients] = []
        for found, leaves in zip(gradients, self._unshared, strict=True):
            heads.append([plain_gradient(leaf, found.pop(_edge(leaf), None)) for leaf in leaves])
            copy_shared_gradients(heads[-1])
        return gramians, heads

    def _pass_through(
        self, segment: Segment, inputs: Sequence[Edge], found: dict[Edge, Tensor], arrived: dict[Edge, Tensor],
        passes: BackwardPasses,
    ) -> None:  # fmt: skip
        """Replace one task's gradients at the beginning of a segment by those at its inputs."""
        roots = [edge for edge in found if edge[0] in segment.nodes and edge not in self._ends]
        if not roots or not inputs:
            return
        arrived.update({edge: found.pop(edge) for edge in roots})
        starts, ends = (list[Any](starmap(GradientEdge, edges)) for edges in (roots, inputs))
        grads = list(arrived.values())
        _add(found, inputs, passes.differentiate(starts, ends, grads, retain_graph=True))
        arrived.clear()

    @contextmanager
    def _hooks_run_once(self, arrived: Mapping[Edge, Tensor]) -> Iterator[None]:
        """Restore the gradients that arrived at a cut after the hooks of its tensors.

        These run when a gradient is computed, and a second time when it is backpropagated, which would scale it twice.
        Hooks of nodes run later.
        """

        def restore(node: Any, grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
            return tuple(arrived.get((node, number), grad) for number, grad in enumerate(grads))

        cut_nodes = {edge[0] for segment in self.segments for edge in segment.inputs if edge not in self._ends}
        handles = [node.register_prehook(functools.partial(restore, node)) for node in cut_nodes]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _reduce(
        self, edges: Sequence[Edge], gradients: Sequence[dict[Edge, Tensor]], scale: float,
        metric: OptimizerMetric | None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Return the Gramians of some parameters, and free their gradients."""
        rows: dict[str, Gradients] = {}
        for edge in edges:
            name = self._names[edge]
            row = [plain_gradient(self._shared[name], found.pop(edge, None)) for found in gradients]
            if any(part is not None for part in row):
                rows[name] = row if metric is None else metric.scale_block(name, row)
        if not rows:
            return {}
        like = {name: self._shared[name] for name in rows}
        return dict(zip(rows, Jacobian(PerTaskRows(rows, like, scale)).block_gramians, strict=True))


class _Graph:
    """The nodes between outputs and leaves, by level: the length of the longest path from an output.

    Networks that are applied once per task have equal levels, so that their segments have the same parameters.

    Args:
        nodes: the nodes that lead to leaves, each after those that use it.
        outputs: for each task the edges at which its gradients begin.
        ends: the edges of leaves.
    """

    def __init__(self, nodes: Sequence[Any], outputs: Sequence[Sequence[Edge]], ends: Set[Edge]) -> None:
        self.tasks, self.ends = len(outputs), ends
        self.level = dict.fromkeys(nodes, 0)
        self._assign_levels(nodes)
        users = dict.fromkeys(nodes, 0)
        for task, edges in enumerate(outputs):
            for node, _ in edges:
                users[node] = users.get(node, 0) | 1 << task
        # For each edge the levels of the nodes from which gradients arrive, and the tasks whose they are, as bits.
        self.parents: dict[Edge, list[tuple[int, int]]] = {}
        for node in nodes:
            for edge in self._edges(node):
                self.parents.setdefault(edge, []).append((self.level[node], users[node]))
                if edge not in ends:
                    users[edge[0]] |= users[node]

    def _edges(self, node: Any) -> list[Edge]:
        """Return the edges of a node that lead to leaves in `ends`."""
        return [edge for edge in node.next_functions if edge in self.ends or edge[0] in self.level]

    def _assign_levels(self, nodes: Sequence[Any]) -> None:
        last: dict[Edge, int] = {}  # the last level from which gradients arrive at a leaf
        for node in nodes:
            for edge in self._edges(node):
                if edge in self.ends:
                    last[edge] = max(last.get(edge, 0), self.level[node])
                else:
                    self.level[edge[0]] = max(self.level[edge[0]], self.level[node] + 1)
        # Nodes between the network and a weight, such as its transposition, wait for the last use of a tied weight.
        only: dict[Any, Edge | None] = {}
        for node in reversed(nodes):
            reached = {edge if edge in self.ends else only[edge[0]] for edge in self._edges(node)}
            only[node] = reached.pop() if len(reached) == 1 else None
        for node in nodes:
            leaf = only[node]
            if leaf is not None:
                self.level[node] = max(self.level[node], last[leaf])

    def best_cuts(self, sizes: Mapping[Edge, int]) -> tuple[int, list[int]]:
        """Return the cuts with the lowest peak, and among these the fewest; cut b is between levels b - 1 and b.

        `sizes`: the bytes of each shared parameter.
        """
        stop = max(self.level.values(), default=0) + 1
        blocked, crossing, started, finished = ([0] * (stop + 1) for _ in range(4))
        for first, last in self._unbreakable():
            blocked[first + 1] += 1
            blocked[last + 1] -= 1
        for edge, parents in self.parents.items():
            levels = [level for level, _ in parents]
            if edge in sizes:
                started[min(levels) + 1] += self.tasks * sizes[edge]
                finished[max(levels) + 1] += self.tasks * sizes[edge]
            elif edge not in self.ends:
                tasks = functools.reduce(operator.or_, (users for _, users in parents)).bit_count()
                size = tasks * _bytes(edge[0]._input_metadata[edge[1]])
                crossing[min(levels) + 1] += size
                crossing[self.level[edge[0]] + 1] -= size
        blocked, crossing, started, finished = map(list, map(accumulate, (blocked, crossing, started, finished)))
        cuts = [0, *(cut for cut in range(1, stop) if not blocked[cut]), stop]
        least = self.tasks * sum(sizes.values()) // PARTS
        # best[k]: for segments that end at cut k the peak, their number, and the cut before.
        best: list[tuple[int, int, int]] = [(least, 0, 0)]
        for index, cut in enumerate(cuts[1:], 1):
            choices: list[tuple[int, int, int]] = []
            for before in range(index - 1, -1, -1):
                rows = started[cut] - finished[cuts[before]]
                if choices and rows > min(choices)[0]:
                    break
                peak = max(best[before][0], rows + crossing[cuts[before]] + crossing[cut])
                choices.append((peak, best[before][1] + 1, before))
            best.append(min(choices))
        chosen, at = [stop], len(cuts) - 1
        while at:
            at = best[at][2]
            chosen.append(cuts[at])
        return best[-1][0], chosen[::-1]

    def _unbreakable(self) -> list[tuple[int, int]]:
        """Return pairs of levels between which there is no cut.

        - One task's gradients arrive at a node or leaf from both sides: to compute the gradient from the side of the
          losses, the engine would pass through the other side, and add the gradient from there.
        - A checkpoint would be recomputed on both sides, and keep the tensors that the first did not use.
        - Hooks of a module's full backward keep a gradient, of one task, from its output to its input.
        """
        spans: dict[Any, list[int]] = {}
        arriving: dict[Any, list[tuple[int, int]]] = {}
        for edge, parents in self.parents.items():
            arriving.setdefault(edge if edge in self.ends else edge[0], []).extend(parents)
        for target, parents in arriving.items():
            for task in range(self.tasks) if len(parents) > 1 else ():
                spans[target, task] = [level for level, users in parents if users >> task & 1]
        for node, level in self.level.items():
            for region in checkpoints(node):
                spans.setdefault(region, []).append(level)
            if node.name() == "BackwardHookFunctionBackward":
                spans.setdefault(node.name(), []).append(level)
        return [(min(levels), max(levels)) for levels in spans.values() if levels]

    def largest_eps(self) -> float:
        """Return the largest machine epsilon of the gradients, 2⁻¹⁰ for TF32, in which a GPU may compute float32."""
        inputs = {(part.dtype, part.device.type) for node in self.level for part in node._input_metadata}
        eps = [torch.finfo(dtype).eps for dtype, _ in inputs if dtype.is_floating_point or dtype.is_complex]
        return max([2.0**-52, *eps, *(2.0**-10 for dtype, device in inputs if dtype.itemsize == 4 and device != "cpu")])

    def segment(self, start: int, stop: int, shared: Set[Edge]) -> Segment:
        """Return the segment of the levels from `start` to `stop` - 1."""
        inputs: dict[Edge, int] = {}
        for edge, parents in self.parents.items():
            if edge in self.ends or self.level[edge[0]] >= stop:
                for level, users in parents:
                    if start <= level < stop:
                        inputs[edge] = inputs.get(edge, 0) | users
        complete = [edge for edge in inputs if edge in shared and max(self.parents[edge])[0] < stop]
        return Segment({node for node, level in self.level.items() if start <= level < stop}, inputs, complete)


def check_direction(
    direction: Mapping[str, Tensor], weights: Tensor, gramians: Mapping[str, Tensor], eps: float
) -> None:
    """Raise unless the direction d = Σ_i w_i g_i, from one pass, agrees with the Gramians: ‖d‖² = wᵀ G w.

    This detects gradients that depend on how the graph is traversed, such as those that a hook clips.

    Args:
        direction: d, by name.
        weights: w, float64 `[tasks]`.
        gramians: G of each parameter, float64 `[tasks, tasks]`.
        eps: machine epsilon of the gradients.

    Raises:
        OptionError: they differ by more than rounding, for one parameter.

    Cost: one norm.
    """
    names = list(gramians)
    blocks = torch.stack([gramians[name] for name in names])
    steps = {name: direction[name].detach() for name in names}
    squares = Jacobian(PerTaskRows({name: [step] for name, step in steps.items()}, steps)).block_squared_norms[:, 0]
    expected = (blocks * weights[:, None] * weights).sum((1, 2))
    bound = (blocks.abs() * weights.abs()[:, None] * weights.abs()).sum((1, 2))
    difference = (squares - expected).abs()
    # The cube root, because rounding grows with the depth of a network. The second summand is for gradients that are
    # zero in exact arithmetic, such as those of a bias before BatchNorm: they are rounding of the others.
    wrong = (difference > eps ** (1 / 3) * bound + eps * bound.sum()) & difference.isfinite()
    if bool(wrong.any()):
        name = names[int(wrong.nonzero()[0])]
        raise OptionError(
            f"the gradient of {name!r} in one backward pass of the weighted losses differs from the weighted sum of "
            "the gradients of each loss, because a hook or a function in the graph is not linear (such as one that "
            "clips gradients): pass memory='rows'. Or because a checkpoint repeats a computation that is not "
            "reproducible: do not checkpoint it. Nothing was written."
        )


def _add(found: dict[Edge, Tensor], edges: Sequence[Edge], gradients: Sequence[Tensor | None]) -> None:
    for edge, gradient in zip(edges, gradients, strict=True):
        if gradient is not None:
            found[edge] = found[edge] + gradient if edge in found else gradient


def _edge(tensor: Tensor) -> Edge:
    edge = get_gradient_edge(tensor)
    return edge.node, edge.output_nr


def _bytes(tensor: Any) -> int:
    return int(math.prod(tensor.shape)) * int(tensor.dtype.itemsize)
