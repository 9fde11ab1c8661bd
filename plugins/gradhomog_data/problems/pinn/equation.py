"""Base class of physics-informed problems: a network, trained on the residuals of a differential equation at points."""

from __future__ import annotations

import copy
import itertools
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

import gradhomog
from gradhomog import Evaluation, Problem, ProblemRun, ProblemSpec, StepReport
from gradhomog_data._seeding import generator


def value_and_derivatives(
    inputs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], first_order: int = 0, second_order: int = 0
) -> Tensor:
    """Return u, ∂u/∂x_i and ∂²u/∂x_i² of u(x) = w_L · tanh(… tanh(W₁ x + b₁) …) + b_L.

    Derivatives are propagated from layer to layer, instead of nested reverse passes. With h = tanh(v) and ′ = ∂/∂x_i,

        v = W h₋ + b,   v′ = W h₋′,   v″ = W h₋″
        h = tanh(v),    h′ = (1 − h²) v′,   h″ = (1 − h²) v″ − 2 h (1 − h²) v′²

    so that all derivatives of a layer are one product with its matrix.

    Args:
        inputs: `[points, inputs]`; it receives no gradient.
        weights: `[outputs, inputs]` of each layer, at least two; the last has one output.
        biases: `[outputs]` of each layer.
        first_order: first derivatives w.r.t. the first `first_order` inputs, ≤ inputs.
        second_order: second derivatives w.r.t. the first `second_order` inputs, ≤ `first_order`.

    Returns:
        `[1 + first_order + second_order, points]`: the value, the first derivatives, the second derivatives.

    Differentiable once w.r.t. weights and biases, by a hand-written reverse pass.

    Cost: (1 + first_order + second_order) forward passes; the reverse pass costs two to three times as much.

    >>> x, w, b = torch.tensor([[0.5]]), [torch.ones(1, 1)] * 2, [torch.zeros(1)] * 2
    >>> value_and_derivatives(x, w, b, first_order=1, second_order=1).flatten()  # tanh 0.5 and its derivatives
    tensor([ 0.4621,  0.7864, -0.7269])
    """
    if not first_order:  # the usual operations are faster for the value alone
        value = inputs
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            value = torch.tanh(linear(value, weight, bias))
        return linear(value, weights[-1], biases[-1]).t()
    sizes = first_order, second_order
    result: Tensor = _Propagation.apply(inputs, *sizes, *weights, *biases)  # type: ignore[no-untyped-call]
    return result


class _Propagation(torch.autograd.Function):
    """The forward pass of `value_and_derivatives`, and its reverse pass.

    One node instead of some fifty operations: for a few hundred points, the overhead of operations is most of the time.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, first_order: int, second_order: int, *parameters: Tensor) -> Tensor:
        depth = len(parameters) // 2
        weights, biases = parameters[:depth], parameters[depth:]
        values, points = 1 + first_order + second_order, len(inputs)
        # Of the first layer, v′ are columns of the matrix, the same for all points, and v″ = 0.
        before = weights[0].t()[:first_order, None]
        after = _tanh(torch.addmm(biases[0], inputs, weights[0].t()), before, None, second_order)
        saved = [inputs, before, after]
        for weight, bias in zip(weights[1:-1], biases[1:-1], strict=True):
            before = (after.view(values * points, -1) @ weight.t()).view(values, points, -1)
            before[0] += bias
            after = _tanh(before[0], before[1 : 1 + first_order], before[1 + first_order :], second_order)
            saved += [before, after]
        result = (after.view(values * points, -1) @ weights[-1].t()).view(values, points)
        result[0] += biases[-1]
        ctx.sizes = first_order, second_order, depth
        ctx.save_for_backward(*weights, *saved)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        first_order, second_order, depth = ctx.sizes
        weights, (inputs, *layers) = ctx.saved_tensors[:depth], ctx.saved_tensors[depth:]
        to_weights = [gradient.reshape(1, -1) @ layers[-1].view(gradient.numel(), -1)]
        to_biases = [gradient[0].sum(0, keepdim=True)]
        to_after = gradient[..., None] * weights[-1][0]
        for layer in range(depth - 2, 0, -1):
            before, after = layers[2 * layer], layers[2 * layer + 1]
            first, second = before[1 : 1 + first_order], before[1 + first_order :]
            to_before = _reverse_tanh(to_after, after[0], first, second, second_order)
            rows = to_before.view(-1, to_before.shape[-1])
            to_biases.append(to_before[0].sum(0))
            to_weights.append(rows.t() @ layers[2 * layer - 1].view(len(rows), -1))
            to_after = (rows @ weights[layer]).view(len(to_before), len(inputs), -1)
        to_before = _reverse_tanh(to_after, layers[1][0], layers[0], None, second_order)
        to_biases.append(to_before[0].sum(0))
        to_weight = to_before[0].t() @ inputs
        to_weight[:, :first_order] += to_before[1 : 1 + first_order].sum(1).t()
        to_weights.append(to_weight)
        return None, None, None, *reversed(to_weights), *reversed(to_biases)


def _tanh(v: Tensor, first: Tensor, second: Tensor | None, second_order: int) -> Tensor:
    """Return h, h′, h″, `[values, points, width]`; None for v″ = 0.

    With s = 1 − h²:  h′ = s v′,   h″ = s v″ − 2 h v′ h′
    """
    first_order = len(first)
    result = torch.empty(1 + first_order + second_order, *v.shape, dtype=v.dtype, device=v.device)
    h = torch.tanh(v, out=result[0])
    tanh_derivative = 1 - h.square()
    torch.mul(first, tanh_derivative, out=result[1 : 1 + first_order])
    if second_order:
        product = first[:second_order] * result[1 : 1 + second_order]
        if second is None:
            torch.mul(product.mul_(-2), h, out=result[1 + first_order :])
        else:
            torch.mul(second, tanh_derivative, out=result[1 + first_order :]).addcmul_(product, h, value=-2)
    return result


def _reverse_tanh(gradient: Tensor, h: Tensor, first: Tensor, second: Tensor | None, second_order: int) -> Tensor:
    """Return the gradient w.r.t. v, v′, v″, `[values, points, width]`, from the gradient g, g′, g″ w.r.t. h, h′, h″.

    With s = 1 − h², so that ds/dv = −2 h s and d(−2 h s)/dv = (6 h² − 2) s = (4 − 6 s) s:

        to v″ = s g″,   to v′ = s g′ − 4 h v′ (s g″)
        to v  = s g − 2 h Σ (v′ (s g′) + v″ (s g″)) + (4 − 6 s) Σ v′² (s g″)

    Sums are over inputs. They accumulate in place, because the speed of memory limits these operations.
    """
    tanh_derivative = 1 - h.square()
    result = gradient * tanh_derivative
    to_first, to_second = result[1 : 1 + len(first)], result[1 + len(first) :]
    total = first[0] * to_first[0]
    for v, g in zip(first[1:], to_first[1:], strict=True):
        total.addcmul_(v, g)
    for v, g in zip(second if second is not None else (), to_second, strict=second is not None):
        total.addcmul_(v, g)
    result[0].addcmul_(total, h, value=-2)
    if second_order:
        product = first[:second_order] * to_second
        total = first[0] * product[0]
        for v, g in zip(first[1:second_order], product[1:], strict=True):
            total.addcmul_(v, g)
        result[0].addcmul_(total, tanh_derivative.mul_(-6).add_(4))
        to_first[:second_order].addcmul_(product, h, value=-4)
    return result


class TanhNetwork(nn.Module):
    """u(x) = w_L · tanh(… tanh(W₁ z + b₁) …) + b_L with z = (x − centre) / scale, for points x of a box.

    Weights are drawn by Glorot and Bengio's normal initialization with gain 1, biases are 0, as in the code of Hwang
    and Lim 2024 (DCGD). With `standardize`, centre and scale are mean and standard deviation of a uniform distribution
    on the box; that code estimates them from 100,000 points.

    Args:
        lower, upper: corners of the box.
        width: units of a hidden layer, ≥ 1.
        depth: hidden layers, ≥ 1.
        standardize: False: z = x.
        generator: source of the initial weights.
    """

    centre: Tensor
    scale: Tensor

    def __init__(
        self,
        lower: Sequence[float],
        upper: Sequence[float],
        width: int,
        depth: int,
        *,
        standardize: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        sizes = [len(lower), *[width] * depth, 1]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        for layer in self._linear_layers():
            nn.init.xavier_normal_(layer.weight, generator=generator)
            nn.init.zeros_(layer.bias)
        centres, scales = [0.0] * len(lower), [1.0] * len(lower)
        if standardize:
            centres = [(low + high) / 2 for low, high in zip(lower, upper, strict=True)]
            scales = [(high - low) / math.sqrt(12) for low, high in zip(lower, upper, strict=True)]
        # Not part of the state: they follow from the box.
        self.register_buffer("centre", torch.tensor(centres), persistent=False)
        self.register_buffer("scale", torch.tensor(scales), persistent=False)

    def _linear_layers(self) -> list[nn.Linear]:
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def forward(self, points: Tensor, first_order: int = 0, second_order: int = 0) -> Tensor:
        """Return u and its derivatives w.r.t. the coordinates x, `[1 + first_order + second_order, points]`.

        Args:
            points: x, `[points, inputs]`.
            first_order, second_order: as in `value_and_derivatives`.
        """
        layers = self._linear_layers()
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        values = value_and_derivatives((points - self.centre) / self.scale, weights, biases, first_order, second_order)
        if not first_order:
            return values
        inverse = 1 / self.scale
        factors = torch.cat([inverse.new_ones(1), inverse[:first_order], inverse[:second_order].square()])
        return values * factors[:, None]


class LowestLoss:
    """A copy of a network at the step with the lowest sum of the tasks' losses on the batch of the step.

    A task whose loss is not computed in a step counts with its last value. Nothing is copied before every task has
    one; until then the copy is the initial network.

    Attributes:
        network: the copy.
        sum: its sum of losses.
        step: the number of optimizer steps before the copy; None before the first copy.
    """

    def __init__(self, network: nn.Module, tasks: Sequence[str]) -> None:
        self.network, self._source = copy.deepcopy(network), network
        self._latest = dict.fromkeys(tasks, math.inf)
        self.sum = math.inf
        self.step: int | None = None

    @torch.no_grad()
    def update(self, losses: Mapping[str, float], step: int) -> None:
        """Copy the network, before the optimizer changes it in step `step`, if the sum of its losses is the lowest."""
        self._latest.update(losses)
        if (total := sum(self._latest.values())) < self.sum:
            self.sum, self.step = total, step
            for kept, current in zip(self.network.parameters(), self._source.parameters(), strict=True):
                kept.copy_(current)

    def state_dict(self) -> dict[str, Any]:
        latest = dict(self._latest)
        return {"network": self.network.state_dict(), "latest": latest, "sum": self.sum, "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self._latest, self.sum = dict(state["latest"]), state["sum"]
        self.step = state.get("step")  # checkpoints of 0.2.0 have none


Points = NDArray[np.float64]


def uniform(random: np.random.Generator, count: int, lower: Sequence[float], upper: Sequence[float]) -> Points:
    """Return independent uniform points `[count, inputs]`; on a side of the box, a coordinate has lower = upper."""
    low, high = np.asarray(lower), np.asarray(upper)
    return np.asarray(low + (high - low) * random.random((count, len(low))))


def latin_hypercube(random: np.random.Generator, count: int, lower: Sequence[float], upper: Sequence[float]) -> Points:
    """Return points `[count, inputs]` of which each of `count` equal intervals of each coordinate has exactly one.

    Source: McKay, Beckman and Conover 1979, Technometrics 21.

    >>> points = latin_hypercube(np.random.default_rng(0), 4, [0, 0], [4, 8])
    >>> sorted(points[:, 0].astype(int).tolist()), sorted((points[:, 1] / 2).astype(int).tolist())
    ([0, 1, 2, 3], [0, 1, 2, 3])
    """
    low, high = np.asarray(lower), np.asarray(upper)
    cells = np.stack([random.permutation(count) for _ in low], axis=1)
    return np.asarray(low + (high - low) * (cells + random.random((count, len(low)))) / count)


def make_grid(lower: Sequence[float], upper: Sequence[float], counts: Sequence[int], *, cells: bool = False) -> Points:
    """Return the points `[product of counts, inputs]` of a grid that includes the sides; the last input varies fastest.

    With `cells`, the centres of cells between such points instead.
    """
    axes = [np.linspace(low, high, count) for low, high, count in zip(lower, upper, counts, strict=True)]
    if cells:
        axes = [(axis[1:] + axis[:-1]) / 2 for axis in axes]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


PDE = "pde"
"""The task whose residual is that of the equation inside the box; the others are its conditions on the sides."""

CONDITIONS = "conditions"
"""The task of all conditions together."""

VALIDATION_GRID = 64
"""Validation points per coordinate, at least: centres of cells, so that they are not test points."""

TESTED = {
    "lowest_loss": "the state with the lowest sum of the losses of a batch",
    "last": "the last state",
    "lowest_error": "the state with the lowest validation error",
}


class PinnOptions(TypedDict, total=False):
    """The options that all physics-informed problems have; see `Pinn`."""

    depth: Annotated[int, Ge(1)]
    conditions: Literal["merged", "separate"]
    state: Literal["lowest_loss", "last", "lowest_error"]
    error: Literal["relative_l2", "mse"]


class Pinn(Problem):
    """A network that is trained on the residuals of a differential equation on a box and of its conditions.

    All parameters are shared by all tasks, and `gradhomog.backward` homogenizes their gradients. The points of a step
    are a function of the seed and its index. Training does not use the solution; scores are errors of the network on a
    grid. A condition is a list of residual vectors r_k `[n_k]`; its loss is Σ_k mean r_k².

    Attributes:
        lower, upper: corners of the box.
        standardize: as in `TanhNetwork`.
        parts: names of the conditions.
        grid: number of test points per coordinate.

    Args:
        depth: hidden layers; `network.width` is their width.
        conditions: `"merged"`: two tasks, the residual of the equation and the sum of the losses of all conditions, as
            in the paper of DCGD; `"separate"`: one task for each kind of condition.
        state: the tested state: `"lowest_loss"`: that with the lowest sum of the losses of a batch, as in the code of
            DCGD, which needs no solution; `"last"`; `"lowest_error"`: that with the lowest validation error.
        error: the score: `"relative_l2"`, ‖û − u‖ / ‖u‖, or `"mse"`, the mean squared error.
    """

    lower: Sequence[float]
    upper: Sequence[float]
    standardize: bool
    parts: tuple[str, ...]
    grid: tuple[int, ...]

    def __init__(
        self,
        run: ProblemRun,
        depth: int = 3,
        conditions: str = "merged",
        state: str = "lowest_loss",
        error: str = "relative_l2",
    ) -> None:
        self.state, self.metric, self.seed, self.device = state, error, run.seed, run.device
        self.state_selection = "best" if state == "lowest_error" else "last"
        self.homogenizers = run.pipeline()
        self.network: TanhNetwork = TanhNetwork(
            self.lower, self.upper, run.width, depth, standardize=self.standardize,
            generator=torch.Generator().manual_seed(run.seed),
        ).to(run.device)  # fmt: skip
        self.tasks = (PDE, *self.parts) if conditions == "separate" else (PDE, CONDITIONS)
        self.lowest = LowestLoss(self.network, self.tasks)
        drawn = ", ".join(f"{len(values)} {name}" for name, values in self.points(0).items())
        self.notes = [
            f"Points of a step: {drawn}. Tested: {TESTED[state]}, on a grid of {' × '.join(map(str, self.grid))} "
            "points. Candidates of tuned methods are chosen by the error at other points; training does not use the "
            "solution.",
        ]

    @abstractmethod
    def draw(self, random: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        """Return new points `[points, inputs]` by name: those inside as `PDE`, and those of the conditions."""

    @abstractmethod
    def pde(self, points: Tensor) -> Tensor:
        """Return the residual of the equation `[points]`."""

    @abstractmethod
    def condition(self, name: str, points: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the residual vectors of a condition."""

    @abstractmethod
    def solution(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the solution u `[points]`, float64."""

    def residual(self, task: str, points: Mapping[str, Tensor]) -> Tensor:
        """Return the residual r `[n]` of a task, differentiable w.r.t. the network; its loss is mean r².

        For a task of several residual vectors, r contains √(n/n_k) r_k, so that mean r² = Σ_k mean r_k².
        """
        if task == PDE:
            return self.pde(points[PDE])
        names = self.parts if task == CONDITIONS else (task,)
        vectors = [vector for name in names for vector in self.condition(name, points)]
        if len(vectors) == 1:
            return vectors[0]
        total = sum(map(len, vectors))
        return torch.cat([vector * (total / len(vector)) ** 0.5 for vector in vectors])

    def points(self, index: int) -> dict[str, Tensor]:
        """Return the points of step `index` by name, `[points, inputs]`."""
        random = generator(self.seed, index, 1)  # 1, because trailing zeros do not change a seed
        drawn = self.draw(random)
        return {name: torch.from_numpy(values.astype(np.float32)).to(self.device) for name, values in drawn.items()}

    def losses(self, index: int) -> dict[str, Tensor]:
        points = self.points(index)
        return {task: self.residual(task, points).square().mean() for task in self.tasks}

    def step(self, index: int, optimizer: torch.optim.Optimizer, inspect: bool) -> StepReport:
        points, tasks = self.points(index), self.homogenizers.choose(self.tasks)
        residuals = {task: self.residual(task, points) for task in tasks}
        losses = {task: residual.square().mean() for task, residual in residuals.items()}
        if self.state == "lowest_loss":
            self.lowest.update({task: float(loss.detach()) for task, loss in losses.items()}, index)
        optimizer.zero_grad()
        report = gradhomog.backward(
            {task: losses.get(task) for task in self.tasks}, self.homogenizers, parameters=self.network,
            residuals={task: residuals.get(task) for task in self.tasks}, inspect=inspect,
            metric=self.step_metric(optimizer),
        )  # fmt: skip
        optimizer.step()
        return report

    # -- evaluation --------------------------------------------------------------------------------------------------

    def validate(self) -> Evaluation:
        """Return the error on centres of cells of a grid."""
        counts = [max(VALIDATION_GRID, count // 2) + 1 for count in self.grid]
        return self._evaluate(make_grid(self.lower, self.upper, counts, cells=True))

    def test(self, states: Sequence[Mapping[str, Any]]) -> Evaluation:
        """Return the error on the grid of the paper."""
        return self._evaluate(make_grid(self.lower, self.upper, self.grid))

    @torch.no_grad()
    def _evaluate(self, points: NDArray[np.float64]) -> Evaluation:
        network = self.lowest.network if self.state == "lowest_loss" else self.network
        inputs = torch.from_numpy(points.astype(np.float32)).to(self.device)
        # In chunks: memory must not grow with the grid.
        values = torch.cat([network(chunk)[0] for chunk in torch.split(inputs, 4096)]).double().cpu().numpy()
        expected = self.solution(points)
        squared, count = float(np.square(values - expected).sum()), len(points)
        error = squared / count
        if self.metric == "relative_l2":
            error = math.sqrt(squared / float(np.square(expected).sum()))
        return Evaluation([error], [squared / count], ["u"], self.metric)

    def write_artifacts(self, folder: Path) -> dict[str, Any]:
        """Return the step of the tested state, if that is not the one in `best.pt`'s entry `network`."""
        return {"lowest_loss_step": self.lowest.step} if self.state == "lowest_loss" else {}

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"lowest": self.lowest.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.lowest.load_state_dict(state["lowest"])


def specification(problem: type[Pinn], summary: str, reference: str) -> ProblemSpec:
    """Return the specification of a problem; the defaults are the settings of DCGD for a tenth of its steps."""

    def defaults(options: Mapping[str, Any]) -> dict[str, Any]:
        count = len(problem.parts) if options["conditions"] == "separate" else 1
        # Static weights for as many tasks as the problem has; they reach 1000 in the papers.
        static = " | ".join(["static", *(f"static(weights={[1] + [w] * count})" for w in (10, 100, 1000))])
        return {
            "homogenizers": ["none", static, "pcgrad", "upgrad", "config"],
            "network": {"width": 50},
            "train": {
                "steps": 5000, "outer_lr": 0.001, "lr_decay": 0.9, "lr_decay_every": 1000, "validate_every": 500,
                "log_every": 100, "checkpoint_every": 1000,
            },
        }  # fmt: skip

    return ProblemSpec(
        problem, summary, reference, defaults, unused_keys=("network.name", "network.size"), single_task=False
    )
