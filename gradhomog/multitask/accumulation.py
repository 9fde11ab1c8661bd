"""Gradient accumulation: the rows of several batches added up, and homogenized once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.homogenization import Homogenization
from gradhomog.multitask.backward import check, scale_of
from gradhomog.multitask.collected import Collected, Features, collect
from gradhomog.multitask.deferred import DeferredRows
from gradhomog.multitask.derivatives import Gradients, Graph, Parts, Summed
from gradhomog.multitask.given import Losses, Parameters, parameters_of
from gradhomog.multitask.groups import Per
from gradhomog.multitask.settle import Heads, Way, settle
from gradhomog.pipelines import Pipeline


class Accumulation:
    """What `accumulated` hands to the loop: `add` for each batch, and when all is done `step`."""

    def __init__(self, pipe: Pipeline, parameters: Mapping[str, Tensor], scaler: torch.amp.GradScaler | None) -> None:
        self._pipe, self._shared, self._scaler = pipe, parameters, scaler
        self._batches: list[Collected] = []
        self._parts: Parts = {}
        self._own: list[dict[int, tuple[Tensor, Tensor]]] = []
        self._step: Homogenization | None = None

    @property
    def step(self) -> Homogenization:
        """What the step came to, once the block has ended without an error."""
        if self._step is None:
            raise OptionError("`step` is there once `with gradhomog.accumulated(...)` has ended without an error.")
        return self._step

    def add(self, losses: Losses, features: Features | None = None) -> None:
        """Add the rows of a batch; its graph is freed.

        `losses` and `features` as in `gradhomog.backward`. Divide losses that are means by the number of batches.

        Raises:
            OptionError: as of `backward`, or another number of tasks than before.
        """
        check(self._pipe, "parameters", "own", features)
        factor = scale_of(self._scaler, losses)
        shown = any("features" in member.needs for member in self._pipe.members)
        batch = collect(losses, self._shared, features, factor, False, False, shown, shown)
        if self._batches and len(batch.losses) != len(self._batches[0].losses):
            raise OptionError(
                f"every batch must have the same tasks; this one has {len(batch.losses)} losses, the first had "
                f"{len(self._batches[0].losses)}."
            )
        rows = batch.derivatives.rows()
        self._parts = _added(self._parts, rows) if self._parts else rows
        self._own = self._own or [{} for _ in batch.losses]
        for own, pairs in zip(self._own, batch.own_gradients, strict=True):
            for leaf, gradient in pairs:
                if gradient is not None:
                    before = own.get(id(leaf))
                    own[id(leaf)] = (leaf, gradient if before is None else before[1] + gradient)
        batch.losses = [loss.detach() for loss in batch.losses]
        batch.derivatives.graph.losses = batch.losses
        self._batches.append(batch)

    def finish(self, per: Per, heads: Heads, domains: Sequence[str] | None, inspect: bool) -> None:
        """Homogenize what was added, and write."""
        if not self._batches:
            raise OptionError("`accumulated` needs at least one batch; got none. Call add(losses) within the block.")
        first = self._batches[0]
        losses = [torch.stack(parts).sum() for parts in zip(*(batch.losses for batch in self._batches), strict=True)]
        leaves = [[leaf for leaf, _ in own.values()] for own in self._own]
        slopes: list[Gradients] = [[slope for _, slope in own.values()] for own in self._own]
        graph = Graph(losses, self._shared, leaves, first.derivatives.graph.factor)
        features = _joined([batch.features for batch in self._batches])
        cotangents = _joined([batch.cotangents for batch in self._batches])
        batch = Collected(losses, first.names, Summed(graph, self._parts, slopes), leaves, features, cotangents)
        rows = DeferredRows(batch.derivatives, formed_first=True)
        overflow = self._scaler is not None and self._scaler.is_enabled()
        self._step = settle(
            self._pipe, batch, rows, Way(domains, per=per, heads=heads, inspect=inspect, overflow=overflow)
        )


@contextmanager
def accumulated(
    pipe: Pipeline,
    *,
    parameters: Parameters,
    per: Per = "model",
    heads: Heads = "own",
    domains: Sequence[str] | None = None,
    scaler: torch.amp.GradScaler | None = None,
    inspect: bool = False,
) -> Iterator[Accumulation]:
    """One homogenized step from several batches: row_i = Σ_b ∂L_i,b/∂θ over the batches that are added in the block.

    Calling `gradhomog.backward` for each batch homogenizes the gradients of each alone, and adds up what comes out;
    here the gradients are added up first, so that N batches of one example are the same step as one of N.

    Args: as of `gradhomog.backward`; `parameters` must be given.

    Raises:
        OptionError: no batch was added; as of `backward`. If the block ends with an error, nothing is written.

    Cost: as `backward` for each batch, and one addition per gradient. Memory: N gradients, and those of a batch.

    >>> import torch, gradhomog
    >>> net, pipe = torch.nn.Linear(3, 2), gradhomog.pipeline("mgda")
    >>> with gradhomog.accumulated(pipe, parameters=net) as several:
    ...     for x in torch.randn(4, 5, 3):
    ...         several.add(net(x).square().mean(0) / 4)
    >>> net.weight.grad.shape, several.step.weights.shape
    (torch.Size([2, 3]), torch.Size([2]))
    """
    several = Accumulation(pipe, parameters_of(parameters), scaler)
    yield several
    several.finish(per, heads, domains, inspect)


def _added(parts: Parts, more: Parts) -> Parts:
    def added(first: Tensor | None, second: Tensor | None) -> Tensor | None:
        return second if first is None else first if second is None else first + second

    return {name: [added(*pair) for pair in zip(parts[name], more[name], strict=True)] for name in parts}


def _joined(batches: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Features or cotangents `[tasks, batch, features]` at every tap, of all batches."""
    return [torch.cat(tap, dim=1) for tap in zip(*batches, strict=True)] if all(batches) else []
