"""Rotation of RotoGBML: each task's query features are rotated so that the gradients that reach the encoder align."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from gradhomog import ConfigError, DataError, Evidence, Homogenizer, HomogenizerSpec, OptionError, TaskKey, hookimpl
from gradhomog_plugins._pooling import matched, mean_cosine, pooled, pooled_energy, unit
from gradhomog_plugins._rotations.base import Settings
from gradhomog_plugins._rotations.by_key import Rotations

CLOSED = ("plane", "procrustes")


class Rotate(Homogenizer):
    """Rotations R_i in SO(m), one per key, that turn the tasks' feature gradients towards their common direction.

    ẑ_i = R_i z_i,  g̃_i = ∂L_i/∂ẑ_i,  the encoder receives R_iᵀ g̃_i,  u_i = Σ_q g̃_iq / ‖Σ_q g̃_iq‖
    v = unit mean of R_jᵀ u_j;  leader: raise Σ_i ⟨R_iᵀ u_i, v⟩ in R_i, with u_i and v constant
    `variant="paper"`: raise Σ_i ⟨R_i g_i, ḡ⟩, g_i = R_iᵀ Σ_q g̃_iq and ḡ = mean of R_j g_j constant

    Args:
        parameterization: `"plane"`, the smallest rotation that takes v to u, in closed form, of directions that follow
            them slowly; `"procrustes"`, the same for several; learnt: `"cayley"` (low rank), `"geodesic"` (dense,
            Riemannian), `"subspace"` (of the first `rank` features), and for reference `"dense_cayley"`, `"expm"`.
        lr: > 0, radians by which one leader step turns a rotation at most, whatever m is.
        max_angle: in (0, π], radians from the identity that are never left (of several planes, their root sum of
            squares). The head was adapted to features that are not rotated: far from the identity it does not know
            what it sees.
        pool: the vectors that are compared: `"task"`, summed over all queries; `"class"`, over the queries of each
            class, classes of different tasks matched by cosine, not with `"plane"`; `"sample"`, one by one, for
            multi-task learning, where the tasks have the same inputs, learnt only.
        key: rotations by `"slot"` or by `"domain"`. A new one starts at the identity.
        limit: ≥ 1, number of rotations kept; the least recently used leave, but none of the batch.
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
    identity at first, where RotoGrad's code starts at random rotations; (4) steps are angles: Adam at the paper's 5e-4
    on a dense matrix turns 64 features by 0.04 radians and 1600 by one; a step that would lower the alignment is not
    taken; (5) pooled gradients hold a small part of their energy in few-shot
    classification, so that their alignment hardly moves the encoder's parameter gradients: see `rotate_rows`.

    >>> import torch, gradhomog
    >>> pipe = gradhomog.pipeline("rotate(lr=1.6)")
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
        lr: float = 5e-3,
        max_angle: float = 0.5,
        pool: Literal["task", "class", "sample"] = "task",
        key: Literal["slot", "domain"] = "slot",
        limit: int | None = None,
        rank: int = 4,
        variant: Literal["corrected", "paper"] = "corrected",
        seed: int = 0,
    ) -> None:
        if not 0 < lr < math.inf:
            raise OptionError(f"rotate: `lr` must be positive; got {lr!r}.")
        if not 0 < max_angle <= math.pi:
            raise OptionError(f"rotate: `max_angle` must be in (0, π] radians; got {max_angle!r}.")
        for name, value in (("limit", limit), ("rank", rank)):
            if value is not None and value < 1:
                raise OptionError(f"rotate: `{name}` must be at least 1; got {value!r}.")
        if pool == "class" and parameterization == "plane":
            raise OptionError(
                "rotate: `pool` 'class' gives several directions a task, and a plane has one; "
                "use parameterization='procrustes' or 'geodesic'."
            )
        if pool == "sample" and parameterization in CLOSED:
            raise OptionError(
                f"rotate: `pool` 'sample' gives other directions in every batch, and {parameterization!r} follows them "
                "from batch to batch; use parameterization='geodesic' or 'cayley'."
            )
        self.parameterization, self.pool, self.key, self.limit = parameterization, pool, key, limit
        self.variant = variant
        self.rotations = Rotations("rotate", parameterization, Settings(lr, max_angle, rank), seed)
        self.reference = torch.zeros(0, 0, dtype=torch.float64)  # what the classes were called by in the last step
        self._measured: dict[str, float | Sequence[float]] = {}

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        _check(features, len(keys), "features")
        return self.rotations.rotated(features, [key.by(self.key) for key in keys])

    def update(self, evidence: Evidence) -> None:
        keys, cotangents = evidence.by(self.key), evidence.feature_cotangents
        _check(cotangents, len(keys), "feature_cotangents")
        sums = pooled(cotangents, self.pool, evidence.targets if self.pool == "class" else None)
        heads = unit(sums)  # u, and what reaches the encoder of it
        rotations = [self.rotations.used(key, heads.shape[-1]) for key in keys]
        arriving = torch.stack([r.rotate(u, transposed=True) for r, u in zip(rotations, heads, strict=True)])
        if self.pool == "class":
            sums, heads, arriving = self._renamed(sums, heads, arriving)
        self._measured = {
            "angle": [rotation.angle for rotation in rotations],
            "feature_cosine_before": mean_cosine(heads),
            "feature_cosine_after": mean_cosine(arriving),
            "pooled_energy": pooled_energy(cotangents),
        }
        goal = unit(arriving.sum(0)) if self.variant == "corrected" else unit(sums.sum(0))
        pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for key, head, arrived in zip(keys, heads, arriving, strict=True):
            pair = (head, goal) if self.variant == "corrected" else (goal, arrived)
            if bool((head * goal).any()):
                pairs.setdefault(key, []).append(pair)
        for key, found in pairs.items():  # tasks of one key turn it together
            u, v = (unit(torch.stack(vectors).sum(0)) for vectors in zip(*found, strict=True))
            there = (u != 0).any(1) & (v != 0).any(1)
            if bool(there.all()) or (self.parameterization not in CLOSED and bool(there.any())):
                self.rotations[key].turn(u[there], v[there])
        if self.limit is not None:
            self.rotations.keep(max(self.limit, len(set(keys))))

    def _renamed(self, *vectors: Tensor) -> list[Tensor]:
        """The classes of all tasks called alike, and as in the last step: by what arrives at the encoder."""
        arriving = vectors[-1]
        known = self.reference.shape == arriving[0].shape
        order = matched(arriving, self.reference.to(arriving.device) if known else arriving[0])
        renamed = [torch.stack([x[o] for x, o in zip(task, order, strict=True)]) for task in vectors]
        self.reference = unit(renamed[-1].sum(0))
        return renamed

    def measured(self) -> Mapping[str, float | Sequence[float]]:
        return self._measured

    def state_dict(self) -> dict[str, Any]:
        return {"rotations": self.rotations.state_dict(), "reference": self.reference.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"rotations", "reference"}:
            raise ConfigError(
                f"the state of Rotate must hold rotations and reference; found {sorted(state)}. "
                "It was saved by another homogenizer or version."
            )
        self.rotations.load_state_dict(state["rotations"])
        self.reference = state["reference"].clone()


def _check(features: Tensor, tasks: int, name: str) -> None:
    if features.dim() != 3 or features.shape[0] != tasks:
        raise DataError(
            f"rotate: `{name}` must have shape [tasks, queries, features] with {tasks} tasks; got "
            f"{tuple(features.shape)}. An encoder of maps needs a torch.nn.Flatten() at its end."
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
