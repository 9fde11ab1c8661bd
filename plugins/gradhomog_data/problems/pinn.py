"""Physics-informed problems: a network is trained on the residuals of a differential equation and of its conditions.

Burgers' equation, the Helmholtz equation and the Klein-Gordon equation, each a subclass of `Pinn`.
"""

import copy
import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, Unpack

import numpy as np
import torch
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from torch import Tensor, nn

import gradhomog
from gradhomog import Evaluation, OptionError, Problem, ProblemRun, StepReport, TaskKey
from gradhomog_data._seeding import generator
from gradhomog_data.problems._tanh_network import TanhNetwork

Points = NDArray[np.float64]


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
        self.step = state["step"]


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
    weight: Annotated[float, Gt(0)]
    rows: Literal["tasks", "residuals"]
    attempts: Annotated[int, Ge(1)]
    dtype: Literal["float32", "float64"]


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
        sample: draws points of a box: `uniform` or `latin_hypercube`.
        sides, start: lower and upper corners of each side with a boundary condition, and of that with the initial one.

    Args:
        counts: points of a step: "interior", "boundary" on each of the sides, and "initial".
        depth: hidden layers; `network.width` is their width.
        conditions: `"merged"`: two tasks, the residual of the equation and the sum of the losses of all conditions, as
            in the paper of DCGD; `"separate"`: one task for each kind of condition.
        state: the tested state: `"lowest_loss"`: that with the lowest sum of the losses of a batch, as in the code of
            DCGD, which needs no solution; `"last"`; `"lowest_error"`: that with the lowest validation error.
        error: the score: `"relative_l2"`, ‖û − u‖ / ‖u‖, or `"mse"`, the mean squared error.
        weight: factor of the losses of the conditions.
        rows: `"tasks"`: one gradient per task; `"residuals"`: one per residual, for `gauss_newton`.
        attempts: with `rows="residuals"`: a step that does not decrease the sum of the losses on its points is undone
            and repeated with the same rows, as `gauss_newton(adaptive=true)` requires, until this number of attempts.
            The last is not undone.
        dtype: that of network and points.
    """

    lower: Sequence[float]
    upper: Sequence[float]
    standardize: bool
    parts: tuple[str, ...]
    grid: tuple[int, ...]
    sample: Callable[..., Points] = staticmethod(uniform)
    sides: Sequence[tuple[Sequence[float], Sequence[float]]]
    start: tuple[Sequence[float], Sequence[float]]

    def __init__(
        self,
        run: ProblemRun,
        counts: Mapping[str, int],
        depth: int = 3,
        conditions: str = "merged",
        state: str = "lowest_loss",
        error: str = "relative_l2",
        weight: float = 1.0,
        rows: str = "tasks",
        attempts: int = 12,
        dtype: str = "float32",
    ) -> None:
        self.weight, self.row_kind, self.attempts, self.dtype = weight, rows, attempts, getattr(torch, dtype)
        self.state, self.metric, self.seed, self.device, self.counts = state, error, run.seed, run.device, counts
        self.state_selection = "best" if state == "lowest_error" else "last"
        self.homogenizers = run.pipeline()
        self.network: TanhNetwork = TanhNetwork(
            self.lower, self.upper, run.width, depth, standardize=self.standardize,
            generator=torch.Generator().manual_seed(run.seed),
        ).to(run.device, self.dtype)  # fmt: skip
        self.tasks = (PDE, *self.parts) if conditions == "separate" else (PDE, CONDITIONS)
        self.lowest = LowestLoss(self.network, self.tasks)
        drawn = ", ".join(f"{len(values)} {name}" for name, values in self.points(0).items())
        self.notes = [
            f"Points of a step: {drawn}. Tested: {TESTED[state]}, on a grid of {' × '.join(map(str, self.grid))} "
            "points. Candidates of tuned methods are chosen by the error at other points; training does not use the "
            "solution."
        ]

    def draw(self, random: np.random.Generator) -> dict[str, Points]:
        """Return new points `[points, inputs]` by name: those inside as `PDE`, and those of the conditions."""
        sides = [self.sample(random, self.counts["boundary"], *side) for side in self.sides]
        points = {PDE: self.sample(random, self.counts["interior"], self.lower, self.upper)}
        if "initial" in self.parts:
            points["initial"] = self.sample(random, self.counts["initial"], *self.start)
        return points | {"boundary": np.concatenate(sides)}

    @abstractmethod
    def pde(self, points: Tensor) -> Tensor:
        """Return the residual of the equation `[points]`."""

    @abstractmethod
    def condition(self, name: str, points: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the residual vectors of a condition."""

    @abstractmethod
    def solution(self, points: Points) -> Points:
        """Return the solution u `[points]`, float64."""

    def residual(self, task: str, points: Mapping[str, Tensor]) -> Tensor:
        """Return the residual r `[n]` of a task, differentiable w.r.t. the network; its loss is mean r².

        For a task of several residual vectors, r contains √(n/n_k) r_k, so that mean r² = Σ_k mean r_k².
        """
        if task == PDE:
            return self.pde(points[PDE])
        names = self.parts if task == CONDITIONS else (task,)
        vectors = [vector for name in names for vector in self.condition(name, points)]
        total = sum(map(len, vectors))
        return torch.cat([vector * (self.weight * total / len(vector)) ** 0.5 for vector in vectors])

    def terms(self, points: Mapping[str, Tensor]) -> list[tuple[Callable[[Tensor], Tensor], Tensor]]:
        """Return the residuals at one point of the equation and of each condition, for `gradhomog.residual_rows`.

        The losses of all residuals have the sum 1/2 Σ_tasks mean r².
        """

        def at(name: str, factor: float, point: Tensor) -> Tensor:
            return factor * torch.cat(self.condition(name, {name: point[None]}))

        found: list[tuple[Callable[[Tensor], Tensor], Tensor]] = [(lambda point: self.pde(point[None]), points[PDE])]
        for name in self.parts:
            count = len(self.condition(name, points)[0])  # of equal length
            factor = (self.weight * len(points[name]) / count) ** 0.5
            found.append((functools.partial(at, name, factor), points[name]))
        return found

    def points(self, index: int) -> dict[str, Tensor]:
        """Return the points of step `index` by name, `[points, inputs]`."""
        random = generator(self.seed, index, 1)  # 1, because trailing zeros do not change a seed
        drawn = self.draw(random)
        return {name: torch.from_numpy(values).to(self.device, self.dtype) for name, values in drawn.items()}

    def losses(self, index: int) -> dict[str, Tensor]:
        return self._losses(self.points(index))

    def _losses(self, points: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {task: self.residual(task, points).square().mean() for task in self.tasks}

    def _step_of_residuals(self, index: int, optimizer: torch.optim.Optimizer) -> StepReport:
        if self.step_metric(optimizer) is not None:
            raise OptionError("problem.rows='residuals' requires train.metric='euclidean'; remove `train.metric`.")
        points, parameters = self.points(index), dict(self.network.named_parameters())
        with torch.no_grad():
            residuals = [self.residual(task, points) for task in self.tasks]
            before = torch.stack([residual.square().mean().double() for residual in residuals]).cpu()
            self.lowest.update(dict(zip(self.tasks, before.tolist(), strict=True)), index)
            start = {name: value.clone() for name, value in parameters.items()}
            losses, rows = gradhomog.residual_rows(self.terms(points), self.network)
            for attempt in range(1, self.attempts + 1):
                report = self.homogenizers.homogenize(rows, losses)
                for name, parameter in parameters.items():
                    parameter.grad = report.direction[name]
                optimizer.step()
                if attempt == self.attempts or sum(self._losses(points).values()) < before.sum():
                    break
                for name, parameter in parameters.items():
                    parameter.copy_(start[name])
        # By task, whose gradient is twice the sum of its rows: the numbers of thousands of rows are not recorded.
        task = torch.repeat_interleave(torch.tensor([*map(len, residuals)]))
        members = 2 * torch.nn.functional.one_hot(task).double().T
        gramian = members @ rows.gramian() @ members.T
        keys = tuple(map(TaskKey, range(len(self.tasks)), self.tasks))
        return StepReport({}, keys, before, gramian=gramian, measured=report.measured)

    def step(self, index: int, optimizer: torch.optim.Optimizer, inspect: bool) -> StepReport:
        if self.row_kind == "residuals":
            return self._step_of_residuals(index, optimizer)
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
    def _evaluate(self, points: Points) -> Evaluation:
        network = self.lowest.network if self.state == "lowest_loss" else self.network
        inputs = torch.from_numpy(points).to(self.device, self.dtype)
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


VISCOSITY = 0.01 / math.pi


class Burgers(Pinn):
    """u_t + u u_x = ν u_xx for (x, t) in [−1, 1] × [0, 1], ν = 0.01/π, u = −sin πx at t = 0 and u = 0 at x = ±1.

    The points of each part are a Latin hypercube. The loss of the boundary is one mean over both sides.

    Source: Raissi, Perdikaris and Karniadakis 2019 (arXiv 1711.10561), appendix A.1; number of points and test grid are
    those of the code of Hwang and Lim 2024 (DCGD, arXiv 2409.18426).

    Deviations from that code: 1. The solution is the Cole-Hopf integral; the code reads it from a file, on 256 × 100
    points of −1 ≤ x ≤ 1 and 0 ≤ t ≤ 0.99, and the test grid here has t up to 1. 2. Points of the conditions are drawn
    from the sides; the code draws them, without replacement, from the points of the file on the sides.

    Args:
        interior: points of a step inside.
        initial: points of a step at t = 0.
        boundary: points of a step on each of the two sides.
        options: as in `Pinn`.
    """

    lower, upper = (-1.0, 0.0), (1.0, 1.0)
    standardize = False
    parts = ("initial", "boundary")
    grid = (256, 100)
    sample = staticmethod(latin_hypercube)
    sides = (((-1, 0), (-1, 1)), ((1, 0), (1, 1)))
    start = (-1, 0), (1, 0)

    def __init__(
        self,
        run: ProblemRun,
        *,
        interior: Annotated[int, Ge(1)] = 1280,
        initial: Annotated[int, Ge(1)] = 42,
        boundary: Annotated[int, Ge(1)] = 42,
        **options: Unpack[PinnOptions],
    ) -> None:
        super().__init__(run, {"interior": interior, "initial": initial, "boundary": boundary}, **options)

    def pde(self, points: Tensor) -> Tensor:
        u, u_x, u_t, u_xx = self.network(points, first_order=2, second_order=1)
        residual: Tensor = u_t + u * u_x - VISCOSITY * u_xx
        return residual

    def condition(self, name: str, points: Mapping[str, Tensor]) -> list[Tensor]:
        u: Tensor = self.network(points[name])[0]
        return [u + torch.sin(math.pi * points[name][:, 0]) if name == "initial" else u]

    def solution(self, points: Points) -> Points:
        return _solution(points.tobytes(), len(points))


@functools.lru_cache(maxsize=4)
def _solution(content: bytes, count: int) -> Points:
    """The solution at points, computed once for each grid: it takes as long as hundreds of steps."""
    points = np.frombuffer(content).reshape(count, 2)
    return burgers_solution(points[:, 0], points[:, 1], VISCOSITY)


NODES = 100
"""Nodes of the quadrature: values for ν = 0.01/π and t ≤ 1 differ from those of 220 nodes by less than 1e-14."""

CHUNK = 4096
"""Points whose integrands, `[points, nodes]`, are computed at the same time."""


def burgers_solution(x: Points, t: Points, viscosity: float, nodes: int = NODES) -> Points:
    """Return u(x, t) of u_t + u u_x = ν u_xx with u(x, 0) = −sin πx and u(±1, t) = 0.

    u = −∫ sin(π(x − η)) f(x − η) e^(−η²/4νt) dη / ∫ f(x − η) e^(−η²/4νt) dη,   f(y) = e^(−cos(πy) / 2πν)

    Gauss-Hermite quadrature with η = √(4νt) s; the largest exponent is subtracted, because f exceeds e^50.

    Args:
        x, t: coordinates `[points]`, t ≥ 0.
        viscosity: ν > 0. With 100 nodes, the error at t = 0.7 is 4e-8 for ν = 0.001 and 0.3 for ν = 0.0001: the
            smaller ν, the more nodes are needed.
        nodes: nodes of the quadrature, ≥ 1.

    Source: Basdevant et al. 1986, Computers and Fluids 14, equation (2.5).

    >>> burgers_solution(np.array([0.5, 0.5]), np.array([0.0, 0.5]), 0.01 / np.pi).round(6)
    array([-1.     , -0.59277])
    """
    positions, weights = np.polynomial.hermite.hermgauss(nodes)
    return np.concatenate([
        _quadrature(x[start : start + CHUNK], t[start : start + CHUNK], viscosity, positions, weights)
        for start in range(0, len(x), CHUNK)
    ])  # fmt: skip


def _quadrature(x: Points, t: Points, viscosity: float, positions: Points, weights: Points) -> Points:
    y = np.pi * (x[:, None] - np.sqrt(4 * viscosity * t)[:, None] * positions)
    exponent = -np.cos(y) / (2 * np.pi * viscosity)
    # The largest exponent with its weight: at the ends of the range, weights are as small as f is large.
    exponent += np.log(weights)
    density = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return np.asarray(-(np.sin(y) * density).sum(axis=1) / density.sum(axis=1))


WAVES = (1, 4)
"""Half-waves of the solution per unit of each coordinate."""


class Helmholtz(Pinn):
    """u_xx + u_yy + k² u = q in [−1, 1]², u = 0 on its sides, with k = 1 and q such that u = sin πx · sin 4πy.

    The loss of the boundary is the sum of the means over the four sides.

    Source: Wang, Teng and Perdikaris 2020 (arXiv 2001.04536), section 4.1; number of points and test grid are those of
    the code of Hwang and Lim 2024 (DCGD, arXiv 2409.18426).

    Args:
        interior: points of a step inside.
        boundary: points of a step on each of the four sides.
        options: as in `Pinn`.
    """

    lower, upper = (-1.0, -1.0), (1.0, 1.0)
    standardize = True
    parts = ("boundary",)
    grid = (100, 100)
    sides = (((-1, -1), (1, -1)), ((-1, 1), (1, 1)), ((-1, -1), (-1, 1)), ((1, -1), (1, 1)))

    def __init__(
        self,
        run: ProblemRun,
        *,
        interior: Annotated[int, Ge(1)] = 1280,
        boundary: Annotated[int, Ge(1)] = 128,
        **options: Unpack[PinnOptions],
    ) -> None:
        super().__init__(run, {"interior": interior, "boundary": boundary}, **options)

    def pde(self, points: Tensor) -> Tensor:
        u, _, _, u_xx, u_yy = self.network(points, first_order=2, second_order=2)
        x, y = (points * math.pi).unbind(1)
        first, second = WAVES
        source = (1 - (first**2 + second**2) * math.pi**2) * torch.sin(first * x) * torch.sin(second * y)
        residual: Tensor = u_xx + u_yy + u - source
        return residual

    def condition(self, name: str, points: Mapping[str, Tensor]) -> list[Tensor]:
        return [*self.network(points["boundary"])[0].chunk(4)]

    def solution(self, points: Points) -> Points:
        first, second = WAVES
        return np.asarray(np.sin(first * math.pi * points[:, 0]) * np.sin(second * math.pi * points[:, 1]))


class KleinGordon(Pinn):
    """u_tt − u_xx + u³ = f for (t, x) in [0, 1]², with f such that u = x cos 5πt + (t x)³.

    Initial condition: u = x and u_t = 0 at t = 0, with the sum of both means as its loss. Boundary condition: u at
    x = 0 and x = 1, with the sum of the means over both sides as its loss.

    Source: Wang, Teng and Perdikaris 2020 (arXiv 2001.04536), section 4.2; number of points and test grid are those of
    the code of Hwang and Lim 2024 (DCGD, arXiv 2409.18426).

    Args:
        interior: points of a step inside.
        initial: points of a step at t = 0, for value and velocity.
        boundary: points of a step on each of the two sides.
        options: as in `Pinn`.
    """

    lower, upper = (0.0, 0.0), (1.0, 1.0)
    standardize = True
    parts = ("initial", "boundary")
    grid = (100, 100)
    sides = (((0, 0), (1, 0)), ((0, 1), (1, 1)))
    start = (0, 0), (0, 1)

    def __init__(
        self,
        run: ProblemRun,
        *,
        interior: Annotated[int, Ge(1)] = 128,
        initial: Annotated[int, Ge(1)] = 128,
        boundary: Annotated[int, Ge(1)] = 128,
        **options: Unpack[PinnOptions],
    ) -> None:
        super().__init__(run, {"interior": interior, "initial": initial, "boundary": boundary}, **options)

    def pde(self, points: Tensor) -> Tensor:
        u, _, _, u_tt, u_xx = self.network(points, first_order=2, second_order=2)
        residual: Tensor = u_tt - u_xx + u**3 - source(points)
        return residual

    def condition(self, name: str, points: Mapping[str, Tensor]) -> list[Tensor]:
        if name == "initial":
            u, u_t = self.network(points["initial"], first_order=1)
            return [u - points["initial"][:, 1], u_t]
        u = self.network(points["boundary"])[0] - exact(points["boundary"])
        return [*u.chunk(2)]

    def solution(self, points: Points) -> Points:
        return exact(torch.from_numpy(points)).numpy()


def exact(points: Tensor) -> Tensor:
    """Return u of points (t, x), `[points]`."""
    t, x = points.unbind(1)
    return x * torch.cos(5 * math.pi * t) + (t * x) ** 3


def source(points: Tensor) -> Tensor:
    """Return f of points (t, x), `[points]`."""
    t, x = points.unbind(1)
    acceleration = -25 * math.pi**2 * x * torch.cos(5 * math.pi * t) + 6 * t * x**3
    return acceleration - 6 * x * t**3 + exact(points) ** 3


class Poisson(Pinn):
    """u_xx + u_yy + 2π² sin πx · sin πy = 0 in [0, 1]², u = 0 on its sides: u = sin πx · sin πy.

    The points of all steps are those of a grid. The loss of the boundary is the sum of the means over the four sides.
    All initial weights and biases are normal with standard deviation 0.1.

    Source: Müller and Zeinhofer 2023 (ENGD, arXiv 2302.13163), section 4.1, and its code, `engd_poisson_2d.py`.

    Deviations from that code: the error is relative, and on a grid that includes the sides.

    Args:
        interior: points of the grid in each coordinate, of which those inside count.
        boundary: points on each side, of which the last belongs to the next side.
        options: as in `Pinn`.
    """

    lower, upper = (0.0, 0.0), (1.0, 1.0)
    standardize = False
    parts = ("boundary",)
    grid = (200, 200)

    def __init__(
        self,
        run: ProblemRun,
        *,
        interior: Annotated[int, Ge(3)] = 30,
        boundary: Annotated[int, Ge(2)] = 30,
        **options: Unpack[PinnOptions],
    ) -> None:
        super().__init__(run, {"interior": interior, "boundary": boundary}, **options)
        random = torch.Generator().manual_seed(run.seed)
        for parameter in self.network.parameters():
            parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=random))

    def draw(self, random: np.random.Generator) -> dict[str, Points]:
        inside = make_grid(self.lower, self.upper, [self.counts["interior"]] * 2)
        side = np.linspace(0, 1, self.counts["boundary"])[:-1]
        zero, one = np.zeros_like(side), np.ones_like(side)
        sides = [(side, zero), (one, side), (1 - side, one), (zero, 1 - side)]
        inside = inside[((inside > 0) & (inside < 1)).all(axis=1)]
        return {PDE: inside, "boundary": np.concatenate([np.stack(each, axis=1) for each in sides])}

    def pde(self, points: Tensor) -> Tensor:
        _, _, _, u_xx, u_yy = self.network(points, first_order=2, second_order=2)
        residual: Tensor = u_xx + u_yy + 2 * math.pi**2 * torch.sin(points * math.pi).prod(1)
        return residual

    def condition(self, name: str, points: Mapping[str, Tensor]) -> list[Tensor]:
        return [*self.network(points["boundary"])[0].chunk(4)]

    def solution(self, points: Points) -> Points:
        return np.asarray(np.sin(points * math.pi).prod(axis=1))


def default_methods(problem: type[Pinn], options: Mapping[str, Any]) -> list[str]:
    """Return the default homogenizers of a problem, with static weights for as many tasks as it has."""
    if options["rows"] == "residuals":
        return ['gauss_newton(adaptive=true, scale="paper")']
    count = len(problem.parts) if options["conditions"] == "separate" else 1
    # They reach 1000 in the papers.
    static = " | ".join(["static", *(f"static(weights={[1] + [w] * count})" for w in (10, 100, 1000))])
    return ["none", static, "pcgrad", "upgrad", "config"]
