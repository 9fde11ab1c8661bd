"""The report of a step: measurements of each task, as text, table, record and scalars."""

import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gradhomog.conflict import cosines
from gradhomog.rows import Direction
from gradhomog.step.step import TaskKey, task_keys
from gradhomog.table import Table

MAX_NAMED = 6
"""Up to this number of tasks, the text of a report names each of them."""


@dataclass(frozen=True, eq=False)
class StageReport:
    """The rows of one step after one homogenizer.

    Attributes:
        name: name of the homogenizer; `"plain"` for the rows without homogenizers.
        gramian: Gramian of the rows, float64 `[tasks, tasks]`.
    """

    name: str
    gramian: Tensor

    @property
    def norms(self) -> Tensor:
        """Norms of the rows, float64 `[tasks]`."""
        return _norms(self.gramian)

    @property
    def cosines(self) -> Tensor:
        """Cosines between the rows, float64 `[tasks, tasks]`."""
        return cosines(self.gramian)

    def record(self) -> dict[str, Any]:
        """Return the report as plain lists, for JSON."""
        return {"name": self.name, "norms": self.norms.tolist(), "cosines": self.cosines.tolist()}


@dataclass(frozen=True, eq=False, repr=False)
class StepReport:
    """The result of one step of a pipeline: the direction, and measurements of each task in the step.

    `gradhomog.backward`, `gradhomog.loss(report=...)`, `gradhomog.accumulated`, `Pipeline.homogenize`, `Learner.step`
    and the adapters of training loops return it. `print(report)` summarizes it in three lines, a notebook shows a table
    with one row per task, and `scalars()` returns numbers by name for a logger.

    Attributes:
        direction: the mean of the homogenized rows, by parameter name. Empty in reports that learners and trainers
            keep, because it would occupy the memory of a gradient.
        keys: slot and domain of each task in the step: all tasks, except those dropped by `nonfinite="drop"` and absent
            tasks. All tensors have these tasks, in this order.
        losses: float64 `[tasks]`, before the step; None if the pipeline was called without losses. With
            `Ranks("batch")` the means over the ranks.
        weights: the weight of each task's row in the direction, float64 `[tasks]`: direction =
            1/N Σ_i weights_i · row_i. None if a stage replaced the rows, or if groups of parameters were homogenized
            separately (`per`).
        gramian: Gramian of the rows before the first stage, float64 `[tasks, tasks]`; None unless a stage read it or
            `inspect` was set.
        stages: with `inspect`, the rows after each `mix` and `rows` stage, in order.
        measured: numbers that the homogenizers report about the step, by homogenizer and name, such as rotation angles.
        unconverged: names of the homogenizers whose solver did not converge.
        exchanged: what ranks exchanged (see `Ranks`): `"rows"`, the step is that of one process with all rows;
            `"directions"`, each rank homogenized its rows, and their directions were averaged, which is another method.
        accuracies: from learners, share of the query set that is classified correctly, float64 `[tasks]`; None for
            regression.

    >>> import torch, gradhomog
    >>> rows = torch.tensor([[3.0, 0.0], [-1.0, 1.0]])
    >>> report = gradhomog.pipeline("pcgrad").homogenize(rows, [0.5, 2.0], domains=["depth", "normals"])
    >>> report
    StepReport of 2 tasks: losses depth 0.5, normals 2
    weights depth 1.33, normals 2.5; norms depth 3, normals 1.41
    cosines: smallest -0.707 (depth, normals), 1 of 1 negative
    >>> report.scalars()["weight/normals"], report.scalars()["loss/normals"]
    (2.5, 2.0)
    """

    direction: Direction
    keys: tuple[TaskKey, ...]
    losses: Tensor | None = None
    weights: Tensor | None = None
    gramian: Tensor | None = None
    stages: Sequence[StageReport] = ()
    measured: Mapping[str, Mapping[str, float | Sequence[float]]] = field(default_factory=dict)
    unconverged: tuple[str, ...] = ()
    exchanged: Literal["nothing", "rows", "directions"] = "nothing"
    accuracies: Tensor | None = None

    @classmethod
    def of_separate_networks(cls, losses: Mapping[str, Tensor], networks: Sequence[nn.Module]) -> "StepReport":
        """Return the report of a step of separate networks, one for each task, after the backward passes.

        Rows of different parameters have no inner products, which are NaN.

        Args:
            losses: by the names of the tasks.
            networks: in the order of the losses, with gradients.
        """
        gradients = [[p.grad.norm() for p in network.parameters() if p.grad is not None] for network in networks]
        norms = torch.stack([torch.stack(each).norm().double() for each in gradients])
        gramian = torch.full((len(norms),) * 2, torch.nan, dtype=torch.float64)
        gramian.diagonal().copy_(norms.square())
        found = torch.stack([loss.detach().double() for loss in losses.values()])
        return cls({}, task_keys(range(len(losses)), tuple(losses)), found, gramian=gramian)

    @property
    def tasks(self) -> tuple[int, ...]:
        """Indices of the tasks in the step."""
        return tuple(key.slot for key in self.keys)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each task in the step: its domain, or its index if it has none."""
        return tuple(key.by() for key in self.keys)

    @property
    def norms(self) -> Tensor | None:
        """Norms of the rows before the first stage, float64 `[tasks]`; None without `gramian` (see `inspect`)."""
        return None if self.gramian is None else _norms(self.gramian)

    @property
    def cosines(self) -> Tensor | None:
        """Cosines between the rows before the first stage, float64 `[tasks, tasks]`; None without `gramian`."""
        return None if self.gramian is None else cosines(self.gramian)

    def scalars(self) -> dict[str, float]:
        """Return the numbers of the step by name, for a logger such as `SummaryWriter` or `wandb.log`.

        `loss/A`, `accuracy/A`, `weight/A` and `norm/A` for each task A, `cosine/A-B` for each pair, their smallest
        `cosine/min`, and `<homogenizer>/<name>` for measurements (the mean, if there is one for each task); those that
        the step has computed. If tasks share a name, as tasks of one domain do, the mean over them.

        Cost: N² numbers, and one copy of the losses to the CPU.
        """
        found: dict[str, list[float]] = {}
        for kind, values in self._columns().items():
            for name, value in zip(self.names, values, strict=True):
                found.setdefault(f"{kind}/{name}", []).append(value)
        if pairs := self._pairs():
            for first, second, cosine in pairs:
                found.setdefault(f"cosine/{first}-{second}", []).append(cosine)
            found["cosine/min"] = [min(cosine for *_, cosine in pairs)]
        for homogenizer, numbers in self.measured.items():
            for name, number in numbers.items():
                found[f"{homogenizer}/{name}"] = list(number) if isinstance(number, Sequence) else [number]
        return {name: sum(values) / len(values) for name, values in found.items() if values}

    def record(self) -> dict[str, Any]:
        """Return the numbers as plain lists, for JSON."""
        tensors = {name: getattr(self, name) for name in ("losses", "accuracies", "norms", "cosines", "weights")}
        return {
            **{name: None if values is None else values.tolist() for name, values in tensors.items()},
            "tasks": list(self.tasks), "names": list(self.names),
            "stages": [stage.record() for stage in self.stages], "measured": self.measured,
        }  # fmt: skip

    def _columns(self) -> dict[str, list[float]]:
        """The numbers with one value per task that are known, by kind."""
        columns = {"loss": self.losses, "accuracy": self.accuracies, "weight": self.weights, "norm": self.norms}
        return {kind: values.tolist() for kind, values in columns.items() if values is not None}

    def _pairs(self) -> list[tuple[str, str, float]]:
        """The names and the cosine of each pair, in an order that does not depend on that of the batch."""
        if self.gramian is None:
            return []
        table, names = cosines(self.gramian).tolist(), self.names
        order = sorted(range(len(names)), key=lambda task: (self.keys[task].domain, self.keys[task].slot))
        return [(names[i], names[j], table[i][j]) for i, j in itertools.combinations(order, 2)]

    def __repr__(self) -> str:
        columns, pairs = self._columns(), self._pairs()
        texts = {kind: self._summary(values) for kind, values in columns.items()}
        lines = [
            f"StepReport of {len(self.keys)} task{'s' * (len(self.keys) != 1)}: losses {texts.get('loss', 'unknown')}",
            f"weights {texts.get('weight', 'none (rows were replaced or grouped)')}; "
            f"norms {texts.get('norm', 'unknown (inspect=True computes them)')}",
            "cosines: none",
        ]
        if "accuracy" in texts:
            lines[0] += f"; accuracies {texts['accuracy']}"
        if pairs:
            first, second, lowest = min(pairs, key=operator.itemgetter(2))
            negative = sum(cosine < 0 for *_, cosine in pairs)
            lines[2] = f"cosines: smallest {lowest:.3g} ({first}, {second}), {negative} of {len(pairs)} negative"
        if self.unconverged:
            lines[2] += f"; not converged: {', '.join(self.unconverged)}"
        if self.exchanged != "nothing":
            lines[2] += f"; ranks exchanged {self.exchanged}"
        return "\n".join(lines)

    def _summary(self, values: Sequence[float]) -> str:
        """The values by name; of many tasks the smallest and the largest."""
        named = [f"{name} {value:.3g}" for name, value in zip(self.names, values, strict=True)]
        if len(named) <= MAX_NAMED:
            return ", ".join(named)
        order = sorted(range(len(named)), key=values.__getitem__)
        return f"{named[order[0]]} … {named[order[-1]]}"

    def _repr_html_(self) -> str:
        columns = list(self._columns().items())
        if self.gramian is not None:
            titles = (f"cosine to {name}" for name in self.names)
            columns += zip(titles, cosines(self.gramian).tolist(), strict=True)
        rows = [[name, *(f"{column[i]:.3g}" for _, column in columns)] for i, name in enumerate(self.names)]
        return Table(["task", *(title for title, _ in columns)], rows).html()


def _norms(gramian: Tensor) -> Tensor:
    return gramian.diagonal().clamp_min(0).sqrt()
