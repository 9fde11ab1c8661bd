"""Rotation of RotoGBML: each task's query features are rotated so that the gradients that reach the encoder align."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from gradhomog import DataError, Evidence, Homogenizer, HomogenizerSpec, OptionError, TaskKey, hookimpl
from gradhomog_plugins import _rotations
from gradhomog_plugins._pooling import matched, mean_cosine, pooled, pooled_energy, unit
from gradhomog_plugins._rotations.base import Rotation, Settings

SEVERAL = ("procrustes", "geodesic", "cayley", "dense_cayley", "expm", "subspace")


class Rotate(Homogenizer):
    """Rotations R_i in SO(m), one per key, that turn the tasks' feature gradients towards their common direction.

    ẑ_i = R_i z_i,  g̃_i = ∂L_i/∂ẑ_i,  the encoder receives R_iᵀ g̃_i,  u_i = Σ_q g̃_iq / ‖Σ_q g̃_iq‖
    v = unit mean of R_jᵀ u_j;  leader: raise Σ_i ⟨R_iᵀ u_i, v⟩ in R_i, with u_i and v constant
    `variant="paper"`: raise Σ_i ⟨R_i g_i, ḡ⟩, g_i = R_iᵀ Σ_q g̃_iq and ḡ = mean of R_j g_j constant

    Args:
        parameterization: `"plane"`, the smallest rotation that takes v to u, in closed form, of their running means;
            `"procrustes"`, the same for several directions; learnt: `"cayley"` (low rank), `"geodesic"` (dense,
            Riemannian), `"subspace"` (of the first `rank` features), and for reference `"dense_cayley"`, `"expm"`.
        lr: > 0, radians by which one leader step may turn a rotation, whatever m is.
        max_angle: in (0, π], radians from the identity that are never left. The head was adapted to features that are
            not rotated: far from the identity it does not know what it sees.
        pool: the vectors that are compared: `"task"`, summed over all queries; `"class"`, over the queries of each
            class, classes of different tasks matched by cosine; `"sample"`, one by one, for multi-task learning, where
            the tasks have the same inputs. The last two need another parameterization than `"plane"`.
        key: rotations by `"slot"` or by `"domain"`. A new one starts at the identity.
        limit: ≥ 1, number of rotations kept; the least recently used leave.
        momentum: in [0, 1), of the running means of `"plane"` and `"procrustes"`.
        rank: ≥ 1, of `"cayley"` and `"subspace"`.
        variant: `"paper"` is equation 6 to the letter. It aligns what reaches the head, and by that turns what reaches
            the encoder apart.
        seed: of `"cayley"`'s random columns.

    Differentiable in the features; the step's rows are not touched. The first step is the plain learner's, bit for bit.
    Nothing at meta-test. State: the rotations by key. Cost: O(queries · m) for a task and O(m) for an update with
    `"plane"`; see each parameterization. Tells `angle` per task, the pooled gradients' mean cosine before and after
    rotation (at the encoder's output), and `pooled_energy`, the share of the gradients' energy that pooling leaves.

    Source: Zhang et al. 2023 (RotoGBML), arXiv 2303.06679, equation 6; Javaloy and Valera 2022 (RotoGrad), arXiv
    2103.02631, equation 11.

    Deviations: (1) equation 6 aligns R_i g_i, the gradients at the head; what reaches the encoder is R_iᵀ g̃_i, whose
    cosine it lowers, so RotoGrad's objective is taken; (2) unit gradients, so that large tasks do not decide v; (3)
    identity at first, where RotoGrad's code starts at random rotations; (4) steps are angles: Adam at 5e-4 on a
    dense matrix turns 1600 features by a radian; (5) pooled gradients hold a small part of their energy in few-shot
    classification, so that their alignment hardly moves the encoder's parameter gradients: see `rotate_rows`.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("rotate(lr=1.6, momentum=0)")
    >>> cotangents = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])  # [tasks, queries, features]
    >>> _ = pipe.combine(torch.eye(2), features=cotangents, feature_cotangents=cotangents)
    >>> keys = [gradhomog.TaskKey(slot) for slot in range(2)]
    >>> features, rotated = pipe.transform(torch.ones(2, 1, 2), keys)
    >>> rotated.squeeze(1)  # doctest: +NORMALIZE_WHITESPACE
    tensor([[1.3570, 0.3982],
            [0.3982, 1.3570]])
    """

    def __init__(
        self,
        parameterization: Literal[
            "plane", "procrustes", "cayley", "geodesic", "subspace", "dense_cayley", "expm"
        ] = "plane",
        lr: float = 5e-4,
        max_angle: float = 0.5,
        pool: Literal["task", "class", "sample"] = "task",
        key: Literal["slot", "domain"] = "slot",
        limit: int | None = None,
        momentum: float = 0.9,
        rank: int = 4,
        variant: Literal["corrected", "paper"] = "corrected",
        seed: int = 0,
    ) -> None:
        if not 0 < lr < math.inf:
            raise OptionError(f"rotate: `lr` must be positive; got {lr!r}.")
        if not 0 < max_angle <= math.pi:
            raise OptionError(f"rotate: `max_angle` must be in (0, π] radians; got {max_angle!r}.")
        if not 0 <= momentum < 1:
            raise OptionError(f"rotate: `momentum` must be in [0, 1); got {momentum!r}.")
        for name, value in (("limit", limit), ("rank", rank)):
            if value is not None and value < 1:
                raise OptionError(f"rotate: `{name}` must be at least 1; got {value!r}.")
        if pool != "task" and parameterization == "plane":
            raise OptionError(
                f"rotate: `pool` {pool!r} gives several directions a task, and a plane has one; "
                f"use parameterization={' or '.join(map(repr, SEVERAL[:2]))}."
            )
        self.parameterization, self.pool, self.key, self.limit = parameterization, pool, key, limit
        self.variant, self.seed = variant, seed
        self.settings = Settings(lr, max_angle, momentum, rank)
        self.rotations: dict[str, Rotation] = {}  # the most recently used last
        self._measured: dict[str, float | Sequence[float]] = {}

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        found = [self._find(key.by(self.key), features) for key in keys]
        if not any(rotation is not None and rotation.tensors for rotation in found):
            return features
        pairs = zip(features, found, strict=True)
        return torch.stack([task if rotation is None else rotation.rotate(task) for task, rotation in pairs])

    def _find(self, key: str, features: Tensor) -> Rotation | None:
        rotation = self.rotations.get(key)
        if rotation is not None and rotation.features != features.shape[-1]:
            raise DataError(
                f"rotate: features must keep their number, {rotation.features}; got {features.shape[-1]}. "
                "Make a new pipeline for another encoder."
            )
        return rotation

    def update(self, evidence: Evidence) -> None:
        keys, cotangents = evidence.by(self.key), evidence.feature_cotangents
        sums = pooled(cotangents, self.pool, evidence.targets if self.pool == "class" else None)
        heads = unit(sums)  # u, and what reaches the encoder of it
        rotations = [self._used(key, heads) for key in keys]
        arriving = torch.stack([r.rotate(u, transposed=True) for r, u in zip(rotations, heads, strict=True)])
        if self.pool == "class":
            order = matched(arriving)
            sums, heads, arriving = (torch.stack([x[o] for x, o in zip(t, order, strict=True)]) for t in
                                     (sums, heads, arriving))  # fmt: skip
        self._measured = {
            "angle": [rotation.angle for rotation in rotations],
            "feature_cosine_before": mean_cosine(heads),
            "feature_cosine_after": mean_cosine(arriving),
            "pooled_energy": pooled_energy(cotangents),
        }
        goal = unit(arriving.sum(0)) if self.variant == "corrected" else unit(sums.sum(0))
        pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for key, head, arrived in zip(keys, heads, arriving, strict=True):
            some = (head.norm(dim=1) > 0) & (goal.norm(dim=1) > 0)
            if bool(some.any()):
                pair = (head[some], goal[some]) if self.variant == "corrected" else (goal[some], arrived[some])
                pairs.setdefault(key, []).append(pair)
        for key, found in pairs.items():
            self.rotations[key].turn(torch.cat([u for u, _ in found]), torch.cat([v for _, v in found]))
        while self.limit is not None and len(self.rotations) > self.limit:
            del self.rotations[next(iter(self.rotations))]

    def _used(self, key: str, vectors: Tensor) -> Rotation:
        rotation = self._find(key, vectors)
        if rotation is None:
            # A seed of its own for each key, and the same whatever keys came before it.
            seed = zlib.crc32(f"{self.seed}/{key}".encode())
            rotation = _rotations.make(self.parameterization, vectors.shape[-1], self.settings, seed)
        self.rotations.pop(key, None)
        self.rotations[key] = rotation
        return rotation

    def measured(self) -> Mapping[str, float | Sequence[float]]:
        return self._measured

    def state_dict(self) -> dict[str, Any]:
        return {
            key: {name: value.clone() if isinstance(value, Tensor) else value
                  for name, value in rotation.state_dict().items()}
            for key, rotation in self.rotations.items()
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.rotations = {
            key: _rotations.restore(self.parameterization, self.settings, saved) for key, saved in state.items()
        }


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=Rotate,
        summary="rotates features so that the gradients that reach the encoder align (RotoGBML)",
        reference="Zhang et al. 2023, arXiv 2303.06679, equation 6",
        traits={"differentiable", "stateful", "scale_equivariant"},
        needs={"features"},
    )
