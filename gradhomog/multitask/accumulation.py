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
from gradhomog.multitask.groups import Per, grouped
from gradhomog.multitask.settle import Heads, Way, settle
from gradhomog.pipelines import Pipeline


class Accumulation:
    """What `accumulated` hands to the loop: `add` for each batch, and when all is done `step`."""

    def __init__(
        self, pipe: Pipeline, parameters: Mapping[str, Tensor], scaler: torch.amp.GradScaler | None, way: Way
    ) -> None:
        self._pipe, self._shared, self._scaler, self._way = pipe, parameters, scaler, way
        self._over = False
        self._factor = 1.0
        self._names: tuple[str, ...] | None = None
        self._losses: list[Tensor] = []
        self._shown: list[tuple[list[Tensor], list[Tensor]]] = []
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
        """Add the rows of a batch.

        `losses` and `features` as in `gradhomog.backward`. Divide losses that are means by the number of batches.

        Raises:
            OptionError: as of `backward`, or other tasks than before; the block is over.
        """
        if self._over:
            raise OptionError("`add` belongs within `with gradhomog.accumulated(...)`; that block is over.")
        check(self._pipe, features)
        self._factor = scale_of(self._scaler, losses)
        shown = any("features" in member.needs for member in self._pipe.members)
        batch = collect(losses, self._shared, features, self._factor, False, False, shown, shown)
        if self._own and (len(batch.losses) != len(self._own) or batch.names != self._names):
            raise OptionError(
                f"every batch must have the same tasks; this one has {_told(batch.names, len(batch.losses))}, "
                f"the first had {_told(self._names, len(self._own))}."
            )
        self._add_rows(batch.derivatives.rows())
        self._names, self._own = batch.names, self._own or [{} for _ in batch.losses]
        for own, pairs in zip(self._own, batch.own_gradients, strict=True):
            for leaf, gradient in pairs:
                if gradient is not None:
                    before = own.get(id(leaf))
                    own[id(leaf)] = (leaf, gradient if before is None else before[1] + gradient)
        self._losses.append(torch.stack([loss.detach().double() for loss in batch.losses]))
        self._shown.append((batch.features, batch.cotangents))

    def _add_rows(self, rows: Parts) -> None:
        """One parameter after the other, so that there are never three of a row."""
        for name, more in rows.items():
            before = self._parts.get(name, [None] * len(more))
            self._parts[name] = [_sum(*pair) for pair in zip(before, more, strict=True)]
            more.clear()

    def finish(self) -> None:
        """Homogenize what was added, and write."""
        self._over = True
        if not self._own:
            raise OptionError("`accumulated` needs at least one batch; got none. Call add(losses) within the block.")
        losses = list(torch.stack(self._losses).sum(0).unbind())
        leaves = [[leaf for leaf, _ in own.values()] for own in self._own]
        slopes: list[Gradients] = [[slope for _, slope in own.values()] for own in self._own]
        summed = Summed(Graph(losses, self._shared, leaves, self._factor), self._parts, slopes)
        features, cotangents = (_joined(tensors) for tensors in zip(*self._shown, strict=True))
        self._parts, self._own, self._shown = {}, [], []
        batch = Collected(losses, self._names, summed, leaves, features, cotangents)
        self._step = settle(self._pipe, batch, DeferredRows(summed, formed_first=True), self._way)


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

    Cost: N passes for each batch, and one addition per gradient. Memory: N gradients, and those of a batch.

    >>> import torch, gradhomog
    >>> net, pipe = torch.nn.Linear(3, 2), gradhomog.pipeline("mgda")
    >>> with gradhomog.accumulated(pipe, parameters=net) as several:
    ...     for x in torch.randn(4, 5, 3):
    ...         several.add(net(x).square().mean(0) / 4)
    >>> net.weight.grad.shape, several.step.weights.shape
    (torch.Size([2, 3]), torch.Size([2]))
    """
    check(pipe, heads=heads, per=per, asked_later=True)
    shared = parameters_of(parameters)
    grouped(list(shared), per)
    overflow = scaler is not None and scaler.is_enabled()
    way = Way(domains, per=per, heads=heads, inspect=inspect, overflow=overflow)
    several = Accumulation(pipe, shared, scaler, way)
    yield several
    several.finish()


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return second if first is None else first if second is None else first + second


def _told(names: tuple[str, ...] | None, tasks: int) -> str:
    return f"losses of {', '.join(names)}" if names else f"{tasks} losses"


def _joined(batches: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Features or cotangents `[tasks, batch, features]` at every tap, of all batches."""
    return [torch.cat(tap, dim=1) for tap in zip(*batches, strict=True)] if all(batches) else []
