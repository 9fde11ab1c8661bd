"""Faulty in what comes out: NaN of degenerate rows, dtypes, dicts, graphs."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.testing.homogenizers.faults import fails
from tests.testing.homogenizers.good import Balance, Clip, Turn, Veto


def some_row_is_zero(jacobian, **_):
    return (
        len(jacobian) <= 2
        and any(not any(row) for row in jacobian)
        and all(abs(x) <= 1 for row in jacobian for x in row)
    )


def gramian_is_singular(jacobian, **_):
    rows = torch.tensor(jacobian, dtype=torch.float64)
    return rows.numel() <= 4 and float(torch.linalg.det(rows @ rows.T)) == 0


@fails("finite_for_finite_rows", "returned NaN or infinity from `mix`", some_row_is_zero)
class DividesByNorm(Balance):
    """Weights inverse to the norms, of which one may be zero."""

    def weights(self, norms):
        inverse = 1 / norms
        return len(norms) * inverse / inverse.sum()


@fails("finite_for_finite_rows", "singular", gramian_is_singular)
class SolvesGramian(Veto):
    """A linear system of the Gramian, which duplicate rows make singular."""

    def mix(self, evidence):
        gramian = evidence.gramian()
        weights = torch.linalg.solve(gramian, torch.ones(len(gramian), dtype=gramian.dtype))
        return len(gramian) * weights / weights.sum()


@fails(
    "finite_for_finite_rows", "must return from `rows` rows of the structure, shapes, dtypes and device",
    lambda jacobian, dtype: jacobian == [[0.0]] and dtype == "torch.float32",
)  # fmt: skip
class ForgetsDtype(Clip):
    """Computes in float64, and forgets to go back."""

    def scaled(self, block, scale):
        return block * scale.reshape(-1, *[1] * (block.dim() - 1))


@fails("half_precision", "not implemented for 'Half'")
class LinearAlgebraInHalf(Clip):
    """Linear algebra in the dtype of the rows, which has none in half precision."""

    def lengths(self, blocks):
        return (
            torch.cat([torch.linalg.svdvals(block[:, None]) for block in blocks.values()], dim=1).double().norm(dim=1)
        )


@fails("half_precision", "returned NaN or infinity from `rows`")
class SquaresInHalf(Clip):
    """Squares in the dtype of the rows: more than 65504 is infinity in float16."""

    def lengths(self, blocks):
        squares = sum(block.reshape(len(block), -1).square().sum(dim=1) for block in blocks.values())
        return torch.where(squares > 0, squares, 1).sqrt().double()


@fails("dict_rows", "raised in `rows`.*'dict' object has no attribute")
class TensorOnly(Clip):
    """Has never seen the rows of a network."""

    def rows(self, jacobian):
        return self.scaled(jacobian, self.scale(jacobian.double().norm(dim=1)))


@fails("dict_rows", "a dict of rows: off by")
class ClipsEachTensor(Clip):
    """Compares norms within each tensor of the network instead of over all of them."""

    def rows(self, jacobian):
        if isinstance(jacobian, Tensor):
            return super().rows(jacobian)
        return {name: super(ClipsEachTensor, self).rows(block) for name, block in jacobian.items()}


@fails("no_graph_unasked", "`seen` of KeepsGraph holds on to the graph")
class KeepsGraph(Turn):
    """Remembers the features that it was shown, and with them the whole forward pass."""

    def transform(self, features, keys):
        self.seen = features
        return super().transform(features, keys)


@fails("no_graph_unasked", r"`seen\['domain \d'\]\[0\]` of KeepsGraphInDict holds on to the graph")
class KeepsGraphInDict(Turn):
    """The same, by domain and in a list."""

    def transform(self, features, keys):
        self.seen = {key.by("domain"): [features] for key in keys}
        return super().transform(features, keys)


@fails("no_graph_unasked", "must return from `mix` a tensor outside the graph")
class LearnsByAutograd(Balance):
    """Weights with a parameter of their own, whose graph goes into the step."""

    def mix(self, evidence):
        with torch.enable_grad():
            return super().mix(evidence) * torch.ones(1, dtype=torch.float64, requires_grad=True)
