"""Rows of tasks whose examples are distributed over ranks: each rank has all tasks, on its part of the batch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradhomog.autograd.derivatives import FeatureDerivatives
from gradhomog.autograd.distributed.agreement import head_shapes, replicas_to_compare, values_to_compare
from gradhomog.autograd.distributed.exchanged_rows import ExchangedRows
from gradhomog.autograd.distributed.features import GatheredFeatures, gather_batch, gather_features
from gradhomog.autograd.distributed.lazy_exchange import LazyExchangedJacobian
from gradhomog.autograd.distributed.mean_losses import mean_losses
from gradhomog.autograd.parameter_groups import group_names
from gradhomog.autograd.row_source import Gradients, backpropagate, finite_direction
from gradhomog.ranks.exchange import sum_tensors
from gradhomog.ranks.local_columns import LocalColumns
from gradhomog.rows import DenseJacobian, Direction, Jacobian
from gradhomog.step.step import KernelTraces, Step
from gradhomog.step.task_key import task_keys


class BatchRows(ExchangedRows):
    """The rows Σ_r w_ri J_ri."""

    def make_step(self) -> Step:
        step, graph, communicator = self._step, self._graph, self._communicator
        tasks = graph.tasks
        communicator.agree(tasks.tasks, {
            **values_to_compare(step, graph, communicator.ranks),
            "tasks": (tasks.tasks, step.names), "heads": head_shapes(graph),
        })  # fmt: skip
        means = mean_losses(self._derivatives, communicator, replicas_to_compare(step, graph, communicator.ranks))
        self._totals = means.totals
        slots = tuple(means.totals)
        names = tuple(step.names[slot] for slot in slots) if step.names else ()
        gathered = GatheredFeatures()
        if step.pipe.requirements.reads_features:
            gathered = gather_features(self._derivatives, step.targets, self._totals, communicator)
        jacobian = self._feature_rows() if step.level == "features" else self._lazy_rows(means.one_pass)
        return Step(
            task_keys(slots, names), jacobian, means.losses, gathered.features, gathered.feature_grads,
            gathered.targets, None if step.kernel_traces is None else self._mean_traces,
        )  # fmt: skip

    def _lazy_rows(self, one_pass: bool) -> Jacobian:
        groups = group_names(list(self._graph.shared), self._step.per).values()
        self._rows = LazyExchangedJacobian(
            self._derivatives, self._totals, one_pass, groups, self._communicator, self._step.reads_rows
        )
        return self._rows

    def used(self) -> Tensor:
        return self._used if self._step.level == "features" else self._rows.used

    def head_gradients(self, factors: Mapping[int, float]) -> Gradients:
        return self.sum_heads(factors, self._totals)

    def _mean_traces(self, probes: int, generator: torch.Generator) -> Tensor:
        """Return the means over the ranks of the traces tr K_i / n_i, which are means over residuals."""
        own: KernelTraces | None = self._step.kernel_traces
        assert own is not None  # by `make_step`
        parts = dict.fromkeys(self._totals, 0.0)
        failure: Exception | None = None
        try:
            traces, weights = own(probes, generator).tolist(), self._graph.loss_weights
            for slot, weight, trace in zip(self._graph.tasks.slots, weights, traces, strict=True):
                if weight > 0:
                    parts[slot] = weight * trace / self._totals[slot]
        except Exception as error:  # raised after the sum, because the other ranks wait in it
            failure = error
        return self._communicator.settle(failure, list(parts.values())).sum(0)

    # -- level="features" --------------------------------------------------------------------------------------------

    def _feature_rows(self) -> Jacobian:
        """Return the rows e_ri / Σ_s e_si ∂L_ri/∂z_r, whose columns are the features of all ranks.

        The features of different ranks belong to different examples, so norms and Gramians are sums over the ranks. The
        direction is backpropagated on each rank, and the gradients of the parameters are summed. All rows are sent to
        every rank only for homogenizers that read rows.
        """
        assert isinstance(self._derivatives, FeatureDerivatives)  # of level="features"
        index = {slot: row for row, slot in enumerate(self._graph.tasks.slots)}
        blocks = {
            name: torch.stack([
                rows[index[slot]] / total if slot in index else torch.zeros_like(rows[0])
                for slot, total in self._totals.items()
            ])
            for name, rows in self._derivatives.feature_rows().items()
        }  # fmt: skip
        self._own: dict[str, slice] = {}  # of gathered rows the examples of this rank
        if not (self._communicator.ranks.gather and self._step.pipe.requirements.readers["jacobian"]):
            return LocalColumns(DenseJacobian(blocks), self._communicator)
        gathered = {name: gather_batch(name, rows, self._communicator) for name, rows in blocks.items()}
        self._own = {name: own for name, (_, own) in gathered.items()}
        return DenseJacobian({name: whole for name, (whole, _) in gathered.items()})

    def to_parameters(self, direction: Direction) -> Direction:
        if self._step.level != "features":
            return direction
        shared = self._graph.shared
        found: dict[str, Tensor | None] = {}
        failure: Exception | None = None
        try:
            own = {name: part[self._own[name]] if name in self._own else part for name, part in direction.items()}
            found = backpropagate(self._derivatives, own)
        except Exception as error:  # raised after the sum, because the other ranks wait in it
            failure = error
        total = sum_tensors(found, shared, self._communicator)
        self._used = self._communicator.settle(failure, [found.get(name) is not None for name in shared])
        return finite_direction(total, self._graph.factor)  # the same numbers on all ranks
