"""Tracked: another method on averages of the rows, so that a step differentiates one task's loss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gradhomog import (
    Homogenizer,
    HomogenizerSpec,
    Jacobian,
    OptionError,
    StageResult,
    Step,
    TaskKey,
    as_jacobian,
    hookimpl,
    jacobian_of_rows,
    keyed,
)
from gradhomog_plugins import _flat_rows
from gradhomog_plugins._columns import wide_dtype
from gradhomog_plugins._inner_method import inner_pipeline

BY_KEY = ("averages", "counts", "seen", "losses", "weights")
"""Names of the state by key that is removed with a key's average."""

UNKNOWN = {"features": "features", "kernel_traces": "traces of kernels"}
"""Statistics that are known for the tasks of the step only."""


class Tracked(Homogenizer):
    """Apply another method to averages of all tasks' rows, of which each step updates only one or a few.

        m_i ← m_i + (1 − β) / (1 − β^t_i) (g_i − m_i) for the tasks of the step, t_i the number of rows in m_i
        d = 1/N Σ_i w_i m_i, w the weights of the other method for the Jacobian of all m_i
        order="compatible": d = 1/|A| Σ_{i ∈ A} w_i g_i, w those for the rows of the step's group A alone

    Args:
        method: the other method: the name of one homogenizer that acts by `mix` or `rows`, for example `"config"` or
            `"cagrad(c=0.5)"`; it may have options, including `scale`.
        rows: the number of tasks whose losses a step differentiates: `"one"`, a number, or `"all"`.
        average: β in [0, 1); 0 keeps the last row of each task.
        every: the weights w are computed in every R-th step, and kept in between; with `order="compatible"` the groups.
        order: `"turn"`: the task with the oldest row (of several, that with the fewest rows) is next. `"compatible"`: a
            step differentiates a group of tasks without conflict of their averages, ⟨m_i, m_j⟩ ≥ 0 for all its pairs;
            the group with the oldest row is next, and new tasks are one group.
        forget: > 0 steps. The average of a task whose row is older is removed, and the direction excludes the task
            until its next row. At least the number of steps in which all tasks have their turn. By default the lag of
            ten tasks with β = 0.9.

    It saves time, not memory: the averages of all N tasks stay in memory, beside the row of the step.

    Use it when a method with N backward passes helps but costs too much, and when rows are noisy: averages have less
    noise, and conflict that is only noise disappears. The averages lag behind the parameters, by about N/(1 − β) steps,
    so use smaller steps than with N passes. Do not use momentum after it (Adam with β₁ = 0, SGD with momentum 0):
    rows are averages already, and a second average doubles the lag. `gradhomog.loss` and `gradhomog.backward`
    differentiate the chosen losses only; `Pipeline.choose` returns their names before they are computed. A head has a
    gradient only in the steps in which its task is chosen.

    `order="compatible"` does not mix tasks that conflict, but takes turns between groups. Averages only determine the
    groups: the direction is that of the method for the rows of the step, so momentum after it is harmless (a
    `MomentumWarning` is issued for any order). It costs one backward pass per task of the group. Without conflict all
    tasks are one group in every step. If every pair conflicts, a step trains one task, and may undo the last one.
    Groups are those of a greedy coloring of the graph of conflicts, tasks with most conflicts first, and change in
    every R-th step or with a new task.

    No method on rows may precede it: for the one row of a step every method returns this row. The policy
    `nonfinite="drop"` is not supported: a task that is dropped would be chosen again in every step.

    The other method receives all averages, the last loss of each task, and neither features nor traces of kernels. Its
    slots are the positions at which the tasks' first rows were computed, or the lowest free number if another task has
    this position. If a batch has several tasks of one name, all of them are differentiated, and their mean is one row.
    A task takes part from its first row on; before all tasks have one, the direction is that of the others. Further
    rows in a step, as in `Pipeline.combine`, are used. Zero rows, duplicates, opposite rows and single tasks are those
    of the other method. Properties such as `non_conflicting` hold for the averages, not for the rows. If `every` > 1,
    the method must act by `mix`; weights are computed anew when a task appears or is removed.

    Not differentiable: averages contain rows of earlier steps.

    State: a row for every key of the last `forget` steps, N × params numbers, and their inner products; with `every` >
    1 one more for the direction; the other method's state. Rows with other names or shapes restart the averages.

    Cost: one backward pass (`rows="one"`), about seven reads and three writes of a row; in every R-th step N
    inner products for each new row and a weighted sum of N rows, and the cost of the other method.

    Source: Liu, Chu, Thuerey 2024, "ConFIG", arXiv 2408.11104, section 3.3 (M-ConFIG), which is the case
    `tracked(method="config")`; here for any method. `order="compatible"`: Patapati and Srinivasan 2025, "Graph Coloring
    for Multi-Task Learning" (SON-GOKU), arXiv 2509.16959: conflicts of averaged gradients, greedy coloring after Welsh
    and Powell, one group per step, new groups in every R-th step.

    Deviations: (1) M-ConFIG also divides d by a second moment of pseudo gradients, as Adam does: here this is the
    outer optimizer's. (2) The reference code (conflictfree 0.1.8) returns 0 until every task has a row. (3) Its
    averages are float32 for any rows. (4) `every` and `forget`. (5) SON-GOKU counts cosines
    below −τ as conflicts; here τ = 0. It also computes the gradients of all tasks for new groups; here the averages are
    as old as the last turns.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("tracked(method='upgrad', average=0.5)")
    >>> pipe.choose(["equation", "boundary"])
    ('equation',)
    >>> weight = torch.ones(2, requires_grad=True)
    >>> losses = {"equation": 2 * weight[0], "boundary": weight.sum()}
    >>> [gradhomog.backward(losses, pipe, parameters=[weight]).direction["0"].tolist() for _ in range(2)]
    [[2.0, 0.0], [1.5, 0.5]]
    """

    state_names = {
        "method": str, "layout": _flat_rows.Layout, "averages": dict[str, Tensor], "losses": dict[str, float],
        "weights": dict[str, float], "direction": Tensor, "products": Tensor, "multiplied": list[str],
        **dict.fromkeys(("slots", "counts", "seen", "groups"), dict[str, int]),
        "steps": int, "weighted": int, "inner": Homogenizer,
    }  # fmt: skip

    def __init__(
        self,
        method: str = "upgrad",
        rows: Literal["one", "all"] | Annotated[int, Ge(1)] = "one",
        average: Annotated[float, Interval(ge=0, lt=1)] = 0.9,
        every: Annotated[int, Ge(1)] = 1,
        order: Literal["turn", "compatible"] = "turn",
        forget: Annotated[int, Ge(1)] = 100,
    ) -> None:
        self.method, self.average, self.every, self.order = method, average, every, order
        self.state_names = {**type(self).state_names, "method": Literal[method]}  # of another method is not loaded
        self.per_step, self.forget = rows, forget
        advice = "Methods that act in the network are put before it: 'isi + tracked(method=\"upgrad\")'."
        [member] = inner_pipeline("tracked", method, ["mix", "rows"], advice).members
        if unknown := [name for need, name in UNKNOWN.items() if need in member.needs]:
            raise OptionError(
                f"tracked: {method!r} reads {unknown[0]}, which are known for the tasks of the step only. Use a "
                "`method` that reads rows, inner products, norms or losses."
            )
        self.inner, self._inner_needs, self._replaces_rows = member.homogenizer, member.needs, member.stage == "rows"
        self._act = member.act  # validated, in the scale of `method`
        self._max_tasks = member.spec.max_tasks if member.spec is not None else None
        self.needs = {"jacobian"} | ({"losses"} & member.needs)
        if order == "compatible" and rows != "one":
            raise OptionError(f"tracked: `rows` must be 'one' for order='compatible', whose groups vary; got {rows!r}.")
        if every > 1 and self._replaces_rows and order != "compatible":
            raise OptionError(
                f"tracked: `every` must be 1 for {method!r}, which replaces rows and has no weights to keep; got "
                f"{every}."
            )
        self.layout: _flat_rows.Layout = {}
        self.averages: dict[str, Tensor] = {}
        self.slots: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.seen: dict[str, int] = {}
        self.losses: dict[str, float] = {}
        self.weights: dict[str, float] = {}
        self.direction = torch.empty(0)
        self.products = torch.empty(0, 0, dtype=torch.float64)  # inner products of the averages of `multiplied`
        self.multiplied: list[str] = []
        self.groups: dict[str, int] = {}
        self.steps = 0
        self.weighted = 0

    def choose(self, keys: Sequence[TaskKey]) -> list[int]:
        names = [key.by() for key in keys]
        candidates = sorted(dict.fromkeys(names), key=self._urgency, reverse=True)  # stable: ties in order of position
        if self.per_step == "all":
            return list(range(len(keys)))
        count = 1 if self.per_step == "one" else self.per_step
        if (turns := math.ceil(len(candidates) / count)) > self.forget:
            raise OptionError(
                f"tracked: `forget` must be at least {turns}, the steps in which {len(candidates)} tasks have their "
                f"turn; got {self.forget}."
            )
        chosen = candidates[:count]
        if self.order == "compatible":
            chosen = [name for name in candidates if self.groups.get(name) == self.groups.get(candidates[0])]
        return [position for position, name in enumerate(names) if name in chosen]

    def rows(self, step: Step) -> StageResult:
        like = step.jacobian.row_like()
        layout = {name: list(value.shape) for name, value in like.items()}
        present = rows_by_key(step, wide_dtype(*like.values()))
        before = {key: value.to(step.device) for key, value in self.averages.items()} if layout == self.layout else {}
        state = self._with_rows(before, present, step)
        averages = {key: state["averages"][key] for key in sorted(state["averages"], key=state["slots"].__getitem__)}
        # The direction is empty if the state is of `every=1`.
        same_tasks = before.keys() == averages.keys() and len(self.direction) > 0
        due = not same_tasks or self.steps - self.weighted >= self.every
        inner_step, converged = None, True
        if due and self.order == "compatible":
            gramian = _flat_rows.gramian([*averages.values()], [], self.products[:0, :0])
            state["groups"] = dict(zip(averages, compatible_groups(gramian), strict=True))
        if self.order == "compatible":
            group = {key: present[key].row for key in averages if key in present}
            direction, inner_step, converged = self._apply(step, layout, state, group)
        elif due:
            direction, inner_step, converged = self._apply(step, layout, state, averages)
        else:  # Σ_i w_i m_i / N changes with the averages of this step only
            direction = self.direction.to(step.device, copy=True)
            for key in present:
                _flat_rows.add_difference(direction, averages[key], before[key], state["weights"][key] / len(averages))
        state |= {
            "layout": layout,
            "direction": direction.clone() if self.every > 1 else direction[:0],  # the optimizer may change `.grad`
            "steps": self.steps + 1,
            "weighted": self.steps if due else self.weighted,
        }
        parts = {name: part.to(like[name].dtype) for name, part in _flat_rows.unflatten(direction, layout).items()}
        return StageResult(step.jacobian.repeat(parts), aux=(state, inner_step), converged=converged)

    def update(self, step: Step) -> Mapping[str, Any]:
        state: dict[str, Any] = step.aux[0]
        inner_step = step.aux[1]
        if inner_step is None or not self.inner.overrides("update"):
            return state
        return {**state, "inner": self.inner.update(inner_step)}

    def measured(self, step: Step) -> Mapping[str, float | Sequence[float]]:
        state, inner_step = step.aux
        ages = [float(self.steps - seen) for seen in state["seen"].values()]
        own = {"tasks": float(len(ages)), "oldest": max(ages)}
        return own if inner_step is None else {**own, **self.inner.measured(inner_step)}

    def _urgency(self, key: str) -> tuple[float, int]:
        """Return the age of a key's row and, for equal ages, minus its count."""
        return (self.steps - self.seen[key], -self.counts[key]) if key in self.seen else (math.inf, 0)

    def _with_rows(self, before: Mapping[str, Tensor], present: Mapping[str, Present], step: Step) -> dict[str, Any]:
        """Return the state by key after a step with the rows `present`, which continue the averages `before`."""
        state: dict[str, Any] = {name: dict(getattr(self, name)) if before else {} for name in BY_KEY}
        state |= {"averages": dict(before), "slots": dict(self.slots)}
        for key, (slot, row) in present.items():
            count = state["counts"][key] = state["counts"].get(key, 0) + 1
            share = (1 - self.average) / (1 - self.average**count)
            state["averages"][key] = torch.lerp(before[key].to(row.dtype), row, share) if key in before else row
            state["seen"][key] = self.steps
            state["slots"].setdefault(key, free_slot(slot, state["slots"].values()))
        if "losses" in self._inner_needs:
            state["losses"] = keyed.write(state["losses"], step.names, step.losses)
        for key in [key for key, seen in state["seen"].items() if self.steps - seen > self.forget]:
            for name in BY_KEY:
                state[name].pop(key, None)
        return state | self._known_products(before.keys() & state["averages"].keys() - present.keys())

    def _known_products(self, unchanged: Set[str]) -> dict[str, Any]:
        """Return the state of the inner products of averages that the step has not changed."""
        unchanged = unchanged if self.order == "turn" else set()
        places = [place for place, key in enumerate(self.multiplied) if key in unchanged]
        multiplied = [self.multiplied[place] for place in places]
        return {"multiplied": multiplied, "products": self.products.cpu()[np.ix_(places, places)]}

    def _apply(
        self, step: Step, layout: _flat_rows.Layout, state: dict[str, Any], vectors: Mapping[str, Tensor]
    ) -> tuple[Tensor, Step, bool]:
        """Return the direction of the other method for vectors by key, its step, and whether it converged.

        Its weights and the new inner products of the vectors are added to `state`.
        """
        order = list(vectors)
        if self._max_tasks is not None and len(order) > self._max_tasks:
            raise OptionError(f"tracked: {self.method!r} supports at most {self._max_tasks} tasks; got {len(order)}.")
        losses = torch.tensor([state["losses"][key] for key in order], dtype=torch.float64) if state["losses"] else None
        tasks = tuple(TaskKey(state["slots"][key], key if step.keys[0].domain else "") for key in order)
        jacobian = self._jacobian(layout, state, vectors)
        inner_step = step.with_rows(jacobian, tasks, losses, self._inner_needs).view(self.inner)
        result = self._act(inner_step)
        wide = vectors[order[0]].dtype
        if wide == torch.float64 and not bool(jacobian.norms().isfinite().all()):  # it would fail in every later step
            raise OptionError("tracked: the square of a row's norm overflows float64. Divide the losses by a constant.")
        if self._replaces_rows:
            weights = [1.0] * len(order)
            direction = torch.cat([part.reshape(-1) for part in result.value.mean().values()]).to(wide)
        else:
            weights = (result.value if result.value.dim() == 1 else result.value.sum(0)).tolist()
            direction = _flat_rows.weighted_sum([*vectors.values()], [weight / len(order) for weight in weights])
        state["weights"] = dict(zip(order, weights, strict=True))
        return direction, inner_step.with_aux(result.aux), result.converged

    def _jacobian(self, layout: _flat_rows.Layout, state: dict[str, Any], vectors: Mapping[str, Tensor]) -> Jacobian:
        """Return the vectors as a Jacobian, with its Gramian where the other method reads inner products only."""
        if "jacobian" in self._inner_needs:
            rows = [_flat_rows.unflatten(vector, layout) for vector in vectors.values()]
            return as_jacobian({name: torch.stack([row[name] for row in rows]) for name in layout})
        jacobian = jacobian_of_rows([_flat_rows.split(vector, layout) for vector in vectors.values()])
        if "gramian" in self._inner_needs:
            order = list(vectors)
            known = [order.index(key) for key in state["multiplied"]]
            jacobian.total_gramian = _flat_rows.gramian([*vectors.values()], known, state["products"])
            state["multiplied"], state["products"] = order, jacobian.total_gramian
        return jacobian


def free_slot(slot: int, taken: Collection[int]) -> int:
    """Return the slot, or the lowest free number if it is taken."""
    return slot if slot not in taken else next(number for number in itertools.count() if number not in taken)


class Present(NamedTuple):
    """The slot of the first task of a key in a step, and the mean row of its tasks, `[params]`."""

    slot: int
    row: Tensor


def rows_by_key(step: Step, dtype: torch.dtype) -> dict[str, Present]:
    """Return the slot and the row of each key of a step."""
    found, keys = {}, step.names
    for key in dict.fromkeys(keys):
        places = [place for place, name in enumerate(keys) if name == key]
        row = step.jacobian.row(places[0]) if len(places) == 1 else step.jacobian.select(places).mean()
        vector = torch.cat([value.reshape(-1) for value in row.values()]).to(dtype)
        found[key] = Present(step.keys[places[0]].slot, vector)
    return found


def compatible_groups(gramian: Tensor) -> list[int]:
    """Return the number of each task's group: the lowest without a conflict, for tasks with most conflicts first.

    >>> compatible_groups(torch.tensor([[1.0, 0.5, -0.1], [0.5, 1.0, 0.2], [-0.1, 0.2, 1.0]]))
    [0, 0, 1]
    """
    conflicts = gramian < 0
    groups: dict[int, int] = {}
    for task in conflicts.sum(1).argsort(descending=True, stable=True).tolist():
        taken = {group for other, group in groups.items() if conflicts[task, other]}
        groups[task] = next(number for number in itertools.count() if number not in taken)
    return [groups[task] for task in range(len(gramian))]


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=Tracked,
        summary="another method on averages of the rows: a step differentiates one task's loss",
        reference="Liu, Chu, Thuerey 2024, arXiv 2408.11104 (M-ConFIG, the case of config)",
        traits={"stateful", "momentum", "scale_equivariant", "rotation_equivariant"},
        needs={"jacobian", "losses"},
        last=True,
    )
