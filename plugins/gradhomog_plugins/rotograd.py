"""RotoGrad: feature gradients of one length, and rotations of each task's features that turn them one way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from gradhomog import (
    ConfigError,
    DataError,
    Evidence,
    Homogenizer,
    HomogenizerSpec,
    OptionError,
    TaskKey,
    hookimpl,
    safe_sqrt,
)
from gradhomog_plugins._pooling import mean_cosine, pooled, unit
from gradhomog_plugins._rotations.base import Settings
from gradhomog_plugins._rotations.by_key import Rotations


class RotoGrad(Homogenizer):
    """Feature gradients G_k get a common length C; rotations R_k in SO(m), one per task, turn them to a common mean.

    r_k = R_k z,  g̃_k = ∂L_k/∂r_k over the batch,  G_k = R_kᵀ g̃_k = ∂L_k/∂z,  U_k = G_k/‖G_k‖  (Frobenius norm)
    magnitude: row k is multiplied by C/‖G_k‖;  C = Σ_k α_k ‖G_k‖,  α_k = (‖G_k‖/‖G_k⁰‖) / Σ_j (‖G_j‖/‖G_j⁰‖)
    rotation: R_k ← R_k − η ∇ L_rot^k,  L_rot^k = −Σ_n ⟨R_kᵀ g̃_nk, v_n⟩,  v = 1/N Σ_k U_k;  g̃ and v are constants
    d = 1/N Σ_k (C/‖G_k‖) g_k  (`scale="mean"`)  or  Σ_k (C/‖G_k‖) g_k  (`scale="paper"`)

    The chain rule is linear, so that a row is scaled where the paper scales a feature gradient; a rotation keeps norms,
    so that those at the heads will do. The gradient by R is closed form, −g̃ᵀ v; the step is one along the rotations:
    R ← R cay(η Σ_n (a_n v_nᵀ − v_n a_nᵀ)) with a = R_kᵀ g̃_k.

    Args:
        lr: > 0, η. The gradient is taken relative to the mean ‖G_k‖ of the batch: a task of that norm is turned by at
            most `lr` radians in a step, and less the better it is aligned. Rotations are to be slower than the network:
            regression of three outputs ended with errors of 0.022 without rotations, 0.023, 0.030, 0.19 with rates of
            0.005, 0.05, 0.5 (measured, three seeds, networks by Adam at 1e-3).
        decay: in (0, 1], what a step of a rotation multiplies its η by.
        rotation, magnitude: whether each half acts.
        variant: `"paper"`, v as above; `"reference"`: times ‖1/N Σ_k G_k‖ (also relative to the mean ‖G_k‖), as in the
            authors' code, so that steps are short where gradients conflict.
        start: of the rotations: `"identity"`; or `"haar"`, drawn uniformly, another for each key, which turns apart
            even tasks that agree.
        size: ≥ 1, only the first `size` features are rotated; all by default.
        pool: `"sample"`, the gradients of the tasks at the same input are compared, as in the paper; `"task"`, their
            sums over the batch, for tasks with inputs of their own, as in meta-learning.
        burn_in: the number of steps with a gradient after which ‖G_k⁰‖ is taken anew, once; 0 for never. The authors'
            code: 20.
        key: what is held is held by `"slot"` or by `"domain"`.
        seed: of `start="haar"`.
        scale: see above.

    Features are `[tasks, queries, features]`, or maps `[tasks, queries, features, *positions]`, of which each position
    counts as a query and the channels are rotated. In multi-task learning every task gets the same features, and the
    rotations belong to the model: at test, too, heads are to be given what `transform` returns. In meta-learning they
    are gone at meta-test, and a row is scaled as a whole, with what it holds of the head's start.

    A task without feature gradient keeps its row, turns nothing, and does not count in C; ‖G_k⁰‖ is its first that is
    not zero. With one task, or tasks that agree, nothing changes. State: rotations, their numbers of steps, first norms
    and numbers of gradients, all by key; `size`² numbers for a rotation. Cost of a task with B samples: O(B size²) for
    its features, and for a step of its rotation while 2B < size, else O(size³).

    Source: Javaloy and Valera 2022 (RotoGrad), arXiv 2103.02631; the authors' code, rotograd 0.1.6.

    Deviations from the paper: (1) the mean of the scaled rows by default, where it has the sum; (2) the gradient of
    L_rot relative to the mean norm, so that a common factor of the losses does not change how fast rotations turn; (3)
    a step that would lower the alignment is halved. From the authors' code: (4) rotations start at the identity; there
    they are Haar-random, since the parametrisation samples anew; (5) no factor of the batch: repeated inputs change
    nothing, where the code sums over inputs of vectors, but averages over those of maps; (6) a first gradient of zero
    is not stored: the code stores 1e-15, and once it has a gradient that task alone decides C (α = 1 − 1e-14); (7)
    first norms are part of the state: the code takes them anew whenever training is resumed.

    >>> import torch, gradhomog
    >>> cotangents = torch.tensor([[[3.0, 0.0]], [[0.0, 1.0]]])  # [tasks, queries, features]
    >>> pipe = gradhomog.pipeline("rotograd")
    >>> pipe.combine(torch.tensor([[6.0], [1.0]]), features=cotangents, feature_cotangents=cotangents)
    tensor([3.])
    """

    carried = ("first_norms", "gradients_seen")

    def __init__(
        self,
        lr: float = 5e-3,
        decay: float = 0.99999,
        rotation: bool = True,
        magnitude: bool = True,
        variant: Literal["paper", "reference"] = "paper",
        start: Literal["identity", "haar"] = "identity",
        size: int | None = None,
        pool: Literal["sample", "task"] = "sample",
        burn_in: int = 0,
        key: Literal["slot", "domain"] = "slot",
        seed: int = 0,
        scale: Literal["mean", "paper"] = "mean",
    ) -> None:
        if not 0 < lr < math.inf:
            raise OptionError(f"rotograd: `lr` must be positive; got {lr!r}.")
        if not 0 < decay <= 1:
            raise OptionError(f"rotograd: `decay` must be in (0, 1]; got {decay!r}.")
        if size is not None and size < 1:
            raise OptionError(f"rotograd: `size` must be at least 1; got {size!r}.")
        if burn_in < 0:
            raise OptionError(f"rotograd: `burn_in` must not be negative; got {burn_in!r}.")
        self.rotation, self.magnitude, self.variant = rotation, magnitude, variant
        self.size, self.pool, self.burn_in, self.key, self.scale = size, pool, burn_in, key, scale
        self.rotations = Rotations("rotograd", "riemannian", Settings(lr, math.pi, 1, size, decay, start), seed)
        self.first_norms: dict[str, float] = {}
        self.gradients_seen: dict[str, int] = {}
        self._measured: dict[str, float | Sequence[float]] = {}
        if not rotation and not magnitude:
            self.needs = frozenset()

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        if not self.rotation:
            return features
        self._check(features, len(keys), "features")
        last = features.movedim(2, -1)
        rotated = self.rotations.rotated(last, [key.by(self.key) for key in keys])
        return features if rotated is last else rotated.movedim(-1, 2)

    def mix(self, evidence: Evidence) -> Tensor:
        weights = torch.ones(evidence.tasks, dtype=torch.float64)
        if self.magnitude:
            norms = lengths(self._samples(evidence))
            weights = equalizing(norms, self._first(evidence.by(self.key), norms))
        return weights if self.scale == "mean" else evidence.tasks * weights

    def update(self, evidence: Evidence) -> None:
        if not self.rotation and not self.magnitude:
            return
        keys, samples = evidence.by(self.key), self._samples(evidence)
        if self.magnitude:
            self._remember(keys, lengths(samples))
        if self.rotation:
            self._turn(keys, pooled(samples, self.pool))

    # -- magnitude ---------------------------------------------------------------------------------------------------

    def _first(self, keys: list[str], norms: Tensor) -> Tensor:
        """‖G⁰‖ `[tasks]`, of this step where it is to be taken from it; positive."""
        taken = [
            key not in self.first_norms or (self.burn_in > 0 and self.gradients_seen[key] == self.burn_in)
            for key in keys
        ]
        held = torch.tensor([self.first_norms.get(key, 1.0) for key in keys], dtype=norms.dtype, device=norms.device)
        if not any(taken):
            return held
        alike = norms.new_tensor([[one == other for other in keys] for one in keys]) * (norms > 0)
        now = (alike @ norms) / alike.sum(1).clamp_min(1)  # tasks of one key have one, the mean of those not zero
        return torch.where(torch.tensor(taken, device=norms.device) & (now > 0), now, held)

    def _remember(self, keys: list[str], norms: Tensor) -> None:
        first = dict(zip(keys, self._first(keys, norms).tolist(), strict=True))
        for key in dict.fromkeys(key for key, norm in zip(keys, norms.tolist(), strict=True) if norm > 0):
            self.first_norms[key] = first[key]
            # It is only asked whether they are as many as `burn_in` yet.
            self.gradients_seen[key] = min(self.gradients_seen.get(key, 0), self.burn_in) + 1

    # -- rotation ----------------------------------------------------------------------------------------------------

    def _turn(self, keys: list[str], heads: Tensor) -> None:
        """One step of every rotation on gradients at the heads, `[tasks, samples, m]`."""
        rotations = [self.rotations.used(key, heads.shape[-1]) for key in keys]
        arriving = torch.stack([r.rotate(task, transposed=True) for r, task in zip(rotations, heads, strict=True)])
        norms = lengths(heads)
        units = unit(arriving.flatten(1)).reshape(arriving.shape)
        self._measured = {
            "angle": [rotation.angle for rotation in rotations],
            "feature_cosine_before": mean_cosine(unit(heads.flatten(1))[:, None]),
            "feature_cosine_after": mean_cosine(units.flatten(1)[:, None]),
        }
        mean_norm = norms.mean()
        if not mean_norm > 0:
            return
        goal = units.mean(0)
        if self.variant == "reference":
            goal = goal * (arriving.mean(0).norm() / mean_norm)
        # A rotation takes the mean over its samples: times their number it is the product of the whole batches.
        pull, there = heads * (heads.shape[1] / mean_norm), (norms > 0).tolist()
        for key in dict.fromkeys(keys):  # tasks of one key turn it together
            own = [index for index, other in enumerate(keys) if other == key and there[index]]
            if own:
                self.rotations[key].turn(pull[own].flatten(0, 1), goal.repeat(len(own), 1))

    # -- shapes ------------------------------------------------------------------------------------------------------

    def _samples(self, evidence: Evidence) -> Tensor:
        """Gradients at the heads, float64 `[tasks, queries · positions, features]`."""
        cotangents = evidence.feature_cotangents
        self._check(cotangents, evidence.tasks, "feature_cotangents")
        return cotangents.double().movedim(2, -1).flatten(1, -2)

    def _check(self, features: Tensor, tasks: int, name: str) -> None:
        if features.dim() < 3 or features.shape[0] != tasks:
            raise DataError(
                f"rotograd: `{name}` must have shape [tasks, queries, features] or [tasks, queries, features, "
                f"*positions] with {tasks} tasks; got {tuple(features.shape)}."
            )
        if self.size is not None and self.size > features.shape[2]:
            raise DataError(
                f"rotograd: `size` must be at most the number of features, {features.shape[2]}; got {self.size}."
            )

    # -- state -------------------------------------------------------------------------------------------------------

    def measured(self) -> Mapping[str, float | Sequence[float]]:
        return self._measured

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "rotations": self.rotations.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        rotations = rest.pop("rotations", None)
        if rotations is None:
            raise ConfigError(
                f"the state of RotoGrad must hold rotations; found {sorted(state)}. "
                "It was saved by another homogenizer or version."
            )
        super().load_state_dict(rest)
        self.rotations.load_state_dict(rotations)


def lengths(gradients: Tensor) -> Tensor:
    """Frobenius norms of `[tasks, ...]`; the derivative of that of zero is zero."""
    return safe_sqrt(gradients.flatten(1).square().sum(1))


def equalizing(norms: Tensor, first: Tensor) -> Tensor:
    """C/‖G_k‖ `[tasks]` for norms ‖G‖ and first norms ‖G⁰‖ > 0; one where there is no gradient."""
    there = norms > 0
    ratios = norms / first
    total = ratios.sum()
    common = (ratios * norms).sum() / torch.where(total > 0, total, torch.ones_like(total))
    return torch.where(there, common / torch.where(there, norms, torch.ones_like(norms)), torch.ones_like(norms))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=RotoGrad,
        summary="gives feature gradients one length and rotates features so that they align (RotoGrad)",
        reference="Javaloy and Valera 2022, arXiv 2103.02631",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant", "orthogonal"},
        needs={"features"},
    )
