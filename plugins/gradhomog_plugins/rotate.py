"""Rotation of RotoGBML: rotate each task's features so that the gradients at the encoder's output align."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from annotated_types import Gt, Interval
from torch import Tensor

from gradhomog import DataError, Homogenizer, HomogenizerSpec, OptionError, Step, TaskKey, hookimpl, keyed
from gradhomog_plugins._pooling import mean_cosine, pool_gradients, pooled_energy, unit_vectors
from gradhomog_plugins._rotations.base import Rotation, angles, check_features, rotate_tasks
from gradhomog_plugins._rotations.geodesic import Geodesic
from gradhomog_plugins._rotations.plane import Plane


class Rotate(Homogenizer):
    """Rotations R_i in SO(m), one per key, that align the tasks' gradients w.r.t. the features at the encoder's output.

        ẑ_i = R_i z_i,  g̃_i = ∂L_i/∂ẑ_i,  the encoder receives R_iᵀ g̃_i,  u_i = Σ_q g̃_iq / ‖Σ_q g̃_iq‖
        v = unit mean of R_jᵀ u_j;  leader: raise Σ_i ⟨R_iᵀ u_i, v⟩ in R_i, with u_i and v constant
        variant="paper": raise Σ_i ⟨R_i g_i, ḡ⟩, g_i = R_iᵀ Σ_q g̃_iq and ḡ = mean of R_j g_j constant

    Args:
        parameterization: `"plane"`, the smallest rotation that maps v to u, in closed form, for directions that follow
            u and v slowly; `"geodesic"`, a dense matrix, updated along the Riemannian gradient.
        lr: > 0, the largest angle in radians of one update of a rotation, for every m.
        max_angle: in (0, π], the largest angle from the identity in radians (for several planes, the root sum of
            squares). The head was adapted to features that are not rotated: large rotations ruin its accuracy.
        pool: the vectors that are compared: `"task"`, summed over all queries; `"sample"`, one by one, for multi-task
            learning, where the tasks have the same inputs, with `"geodesic"` only.
        key: rotations by `"domain"`, the names of the tasks (their positions where they have none), or by `"slot"`,
            their positions, for meta-learning in one domain, whose tasks have one name. A new one starts at the
            identity.
        variant: `"paper"` is equation 6 literally. It aligns the gradients at the head, and thereby moves the gradients
            at the encoder apart.

    Use it when the tasks share features and `feature_cosine_before` is low or negative over many steps, as in
    multi-task learning with common inputs. In few-shot classification it hardly changes the encoder's parameter
    gradients (`pooled_energy` is small), and large angles lower accuracy: see docs/results/ablation.md and
    docs/decisions/0008-rotation.md; `rotate_rows` acts on the parameter gradients.

    z_i are the features `[queries, m]` of task i, m is their number for each query, and q is a query. The leader is the
    update of the rotations after each step.

    The rows of a step are not changed. The first step is exactly that of the plain learner (every bit is equal).
    Rotations are not applied at meta-test. Reports `angle` per task, the mean cosine of the pooled gradients before and
    after rotation (at the encoder's output), and `pooled_energy`, the share of the gradients' energy that pooling
    keeps.

    Differentiable in the features.

    State: the rotations by key.

    Cost: O(queries · m) for a task and O(m) for an update with `"plane"`; O(m²) with `"geodesic"`.

    Source: Zhang et al. 2023 (RotoGBML), arXiv 2303.06679, equation 6; Javaloy and Valera 2022 (RotoGrad), arXiv
    2103.02631, equation 11.

    Deviations: (1) RotoGrad's objective: equation 6 aligns R_i g_i, the gradients at the head; the encoder receives
    R_iᵀ g̃_i, whose cosine equation 6 lowers. (2) Unit gradients, so that tasks with large gradients do not determine
    v. (3) Rotations start at the identity; RotoGrad's code starts at random rotations. (4) Steps are angles: Adam at
    the paper's 5e-4 on a dense matrix rotates 64 features by 0.04 radians and 1600 by one. A step that would lower the
    alignment is rejected. (5) Pooled gradients keep a small part of their energy in few-shot classification, so their
    alignment hardly changes the encoder's parameter gradients: see `rotate_rows`.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("rotate(lr=1.6)")
    >>> grads = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])  # [tasks, queries, features]
    >>> _ = pipe.combine(torch.eye(2), features=grads, feature_grads=grads)
    >>> keys = [gradhomog.TaskKey(slot) for slot in range(2)]
    >>> features, rotated = pipe.transform(torch.ones(2, 1, 2), keys)
    >>> rotated.squeeze(1)  # doctest: +NORMALIZE_WHITESPACE
    tensor([[1.3570, 0.3982],
            [0.3982, 1.3570]])
    """

    state_names = {"rotations": dict[str, Tensor]}

    def __init__(
        self,
        parameterization: Literal["plane", "geodesic"] = "plane",
        lr: Annotated[float, Gt(0)] = 5e-3,
        max_angle: Annotated[float, Interval(gt=0, le=math.pi)] = 0.5,
        pool: Literal["task", "sample"] = "task",
        key: Literal["domain", "slot"] = "domain",
        variant: Literal["corrected", "paper"] = "corrected",
    ) -> None:
        if parameterization == "plane" and pool == "sample":
            raise OptionError(
                "rotate: `pool` 'sample' has several directions per task, but a plane has one; "
                "use parameterization='geodesic'."
            )
        self.parameterization, self.lr, self.max_angle = parameterization, lr, max_angle
        self.pool, self.key, self.variant = pool, key, variant
        self.rotations: dict[str, Tensor] = {}
        self._form: type[Rotation] = Plane if parameterization == "plane" else Geodesic

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        _check(features, len(keys), "features")
        return rotate_tasks([self._rotation(key.by(self.key), features.shape[-1]) for key in keys], features)

    def update(self, step: Step) -> Mapping[str, Any]:
        keys, (_, pooled, head, encoder) = [key.by(self.key) for key in step.keys], self._directions(step)
        if self.variant == "corrected":
            u, v = keyed.mean(keys, head), dict.fromkeys(keys, unit_vectors(encoder.sum(0)))
        else:
            u, v = dict.fromkeys(keys, unit_vectors(pooled.sum(0))), keyed.mean(keys, encoder)
        updated = {}
        for key in u:
            heads, goals = unit_vectors(u[key]), unit_vectors(v[key])
            nonzero = (heads != 0).any(1) & (goals != 0).any(1)
            if bool(nonzero.any()):
                heads, goals = heads[nonzero], goals[nonzero]
                rotation = self._rotation(key, heads.shape[-1]) or self._form.identity(goals)
                updated[key] = rotation.step(heads, goals, self.lr, self.max_angle)
        return {"rotations": self.rotations | {key: rotation.tensor for key, rotation in updated.items()}}

    def measured(self, step: Step) -> Mapping[str, float | Sequence[float]]:
        rotations, _, head, encoder = self._directions(step)
        return {
            "angle": angles(rotations),
            "feature_cosine_before": mean_cosine(head),
            "feature_cosine_after": mean_cosine(encoder),
            "pooled_energy": pooled_energy(step.feature_grads),
        }

    def _rotation(self, key: str, features: int) -> Rotation | None:
        rotation = self._form(self.rotations[key]) if key in self.rotations else None
        check_features("rotate", rotation, features)
        return rotation

    def _directions(self, step: Step) -> tuple[list[Rotation | None], Tensor, Tensor, Tensor]:
        """Return the rotations, and gradients `[tasks, vectors, m]`: at the head, u (of unit length), and Rᵀ u."""
        grads = step.feature_grads
        _check(grads, step.tasks, "feature_grads")
        sums = pool_gradients(grads, self.pool)
        if self.parameterization == "plane":  # few numbers, whose angles are read several times per task
            sums = sums.cpu()
        rotations = [self._rotation(key.by(self.key), sums.shape[-1]) for key in step.keys]
        head = unit_vectors(sums)
        return rotations, sums, head, rotate_tasks(rotations, head, transposed=True)


def _check(features: Tensor, tasks: int, name: str) -> None:
    if features.dim() != 3 or features.shape[0] != tasks:
        raise DataError(
            f"rotate: `{name}` must have shape [tasks, queries, features] with {tasks} tasks; got "
            f"{tuple(features.shape)}. If the encoder returns maps, add torch.nn.Flatten() at its end."
        )


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=Rotate,
        summary="rotates features so that the gradients that reach the encoder align (RotoGBML)",
        reference="Zhang et al. 2023, arXiv 2303.06679, equation 6",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant", "orthogonal"},
        needs={"features"},
    )
