"""RotoGrad: scale feature gradients to one norm, and rotate features to align them."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gradhomog import DataError, Homogenizer, HomogenizerSpec, StageResult, Step, TaskKey, hookimpl, keyed, safe_sqrt
from gradhomog_plugins._pooling import mean_cosine, pool_gradients, unit_vectors
from gradhomog_plugins._rotations.base import angles, check_features, rotate_tasks
from gradhomog_plugins._rotations.geodesic import Geodesic, haar


class RotoGrad(Homogenizer):
    """Scale the feature gradients G_k to a common length C, and rotate features by R_k in SO(m) to align the G_k.

        r_k = R_k z,  g̃_k = ∂L_k/∂r_k over the batch,  G_k = R_kᵀ g̃_k = ∂L_k/∂z,  U_k = G_k/‖G_k‖  (Frobenius norm)
        magnitude: row k is multiplied by C/‖G_k‖;  C = Σ_k α_k ‖G_k‖,  α_k = (‖G_k‖/‖G_k⁰‖) / Σ_j (‖G_j‖/‖G_j⁰‖)
        rotation: R_k ← R_k − η ∇ L_rot^k,  L_rot^k = −Σ_n ⟨R_kᵀ g̃_nk, v_n⟩,  v = 1/N Σ_k U_k;  g̃ and v are constants
        d = 1/N Σ_k (C/‖G_k‖) g_k;  paper's scale: N times as long

    Args:
        lr: > 0, η. The gradient is relative to the mean ‖G_k‖ of the batch: a rotation of a task with that norm turns
            by at most `lr` radians in a step, and less the better it is aligned. Rotations should be slower than the
            network: regression of three outputs ended with errors of 0.022 without rotations, 0.023, 0.030, 0.19 with
            rates of 0.005, 0.05, 0.5 (measured, three seeds, networks by Adam at 1e-3).
        decay: in (0, 1], factor of a rotation's η after each of its steps.
        rotation: rotate the features.
        magnitude: scale the rows.
        variant: `"paper"`, v as above; `"reference"`: v times ‖1/N Σ_k G_k‖ (also relative to the mean ‖G_k‖), as in
            the authors' code, so that steps are short where gradients conflict.
        start: initial value of the rotations: `"identity"`; or `"haar"`, drawn uniformly, another for each key, which
            also separates tasks that agree.
        size: ≥ 1, only the first `size` features are rotated; all by default.
        pool: `"sample"`, the gradients of the tasks at the same input are compared, as in the paper; `"task"`, their
            sums over the batch, for tasks with different inputs, as in meta-learning.
        burn_in: the number of steps with a gradient after which ‖G_k⁰‖ is measured again, once; 0 for never. The
            authors' code: 20.
        seed: seed of `start="haar"`.
        scale: `"paper"`, the sum of the scaled rows instead of their mean.

    Use it when tasks with the same inputs share features, and their feature gradients differ in norm (`magnitude`) or
    have low or negative cosines (`rotation`). Rotations that are as fast as the network increase the error (see `lr`).
    In few-shot learning, where a pooled gradient keeps little energy, do not expect an effect of the rotations
    (docs/decisions/0008-rotation.md).

    By the linear chain rule, scaling a row equals scaling the feature gradient, as the paper does; rotations keep
    norms, so the norms at the heads are the same. The gradient w.r.t. R has the closed form −g̃ᵀ v; the step is taken
    along the rotations: R ← R cay(η Σ_n (a_n v_nᵀ − v_n a_nᵀ)) with a = R_kᵀ g̃_k.

    Features are `[tasks, queries, features]`, or maps `[tasks, queries, features, *positions]`, of which each position
    counts as a query and the channels are rotated. In multi-task learning every task has the same features, and the
    rotations belong to the model: at test, too, heads require the output of `transform`. In meta-learning they are
    removed at meta-test, and a row is scaled as a whole, with the gradient at the head's initial parameters.

    A task whose feature gradient is zero keeps its row and its rotation, and does not count in C; ‖G_k⁰‖ is its first
    norm that is not zero. With one task, or tasks that agree, nothing changes.

    Differentiable in rows and features, with the rotations as constants.

    State: by key, rotations (`size`² numbers each), their numbers of steps, first norms and numbers of gradients.

    Cost: of a task with B samples, O(B size²) for its features, and for a step of its rotation while 2B < size,
    otherwise O(size³).

    Source: Javaloy and Valera 2022 (RotoGrad), arXiv 2103.02631; the authors' code, rotograd 0.1.6.

    Deviations: From the paper: (1) The mean of the scaled rows by default; the paper has the sum. (2) The gradient of
    L_rot is relative to the mean norm, so that a common factor of the losses does not change the speed of the
    rotations. (3) A step that would lower the alignment is halved. From the authors' code: (4) Rotations start at the
    identity; in the code they are Haar-random, because the parametrization samples them. (5) No factor of the batch
    size: repeated inputs change nothing, whereas the code sums over inputs of vectors, but averages over those of maps.
    (6) A first gradient of zero is not stored. The code stores 1e-15, and once the task has a gradient, it alone
    determines C (α = 1 − 1e-14). (7) First norms are part of the state; the code measures them again whenever training
    is resumed.

    >>> import torch, gradhomog
    >>> grads = torch.tensor([[[3.0, 0.0]], [[0.0, 1.0]]])  # [tasks, queries, features]
    >>> pipe = gradhomog.pipeline("rotograd")
    >>> pipe.combine(torch.tensor([[6.0], [1.0]]), features=grads, feature_grads=grads)
    tensor([3.])
    """

    state_names = {
        "rotations": dict[str, Tensor], **dict.fromkeys(("turns", "first_norms", "gradients_seen"), dict[str, float])
    }  # fmt: skip

    def __init__(
        self,
        lr: Annotated[float, Gt(0)] = 5e-3,
        decay: Annotated[float, Interval(gt=0, le=1)] = 0.99999,
        rotation: bool = True,
        magnitude: bool = True,
        variant: Literal["paper", "reference"] = "paper",
        start: Literal["identity", "haar"] = "identity",
        size: Annotated[int, Ge(1)] | None = None,
        pool: Literal["sample", "task"] = "sample",
        burn_in: Annotated[int, Ge(0)] = 0,
        seed: int = 0,
    ) -> None:
        self.lr, self.decay, self.rotation, self.magnitude, self.variant = lr, decay, rotation, magnitude, variant
        self.start, self.size, self.pool, self.burn_in, self.seed = start, size, pool, burn_in, seed
        self.rotations: dict[str, Tensor] = {}
        self.turns: dict[str, float] = {}
        self.first_norms: dict[str, float] = {}
        self.gradients_seen: dict[str, float] = {}
        if not rotation and not magnitude:
            self.needs = frozenset()

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        if not self.rotation:
            return features
        self._check(features, len(keys), "features")
        last = features.movedim(2, -1)
        rotated = rotate_tasks([self._rotation(key.by(), last.shape[-1]) for key in keys], last)
        return features if rotated is last else rotated.movedim(-1, 2)

    def mix(self, step: Step) -> StageResult:
        if not self.magnitude:
            return StageResult(torch.ones(step.tasks, dtype=torch.float64))
        norms = lengths(self._samples(step)).cpu()
        return StageResult(equalizing_weights(norms, self._first_norms(step.names, norms)), aux=norms)

    def paper_scale(self, step: Step) -> float:
        return step.tasks

    def update(self, step: Step) -> Mapping[str, Any]:
        new: dict[str, Any] = {}
        keys = step.names
        if self.magnitude:
            new |= self._new_norms(keys, step.aux)
        if self.rotation:
            new |= self._new_rotations(keys, pool_gradients(self._samples(step), self.pool))
        return new

    def measured(self, step: Step) -> Mapping[str, float | Sequence[float]]:
        if not self.rotation:
            return {}
        heads = pool_gradients(self._samples(step), self.pool)
        rotations = [self._rotation(key, heads.shape[-1]) for key in step.names]
        at_encoder = rotate_tasks(rotations, heads, transposed=True)
        return {
            "angle": angles(rotations),
            "feature_cosine_before": mean_cosine(unit_vectors(heads.flatten(1))[:, None]),
            "feature_cosine_after": mean_cosine(unit_vectors(at_encoder.flatten(1))[:, None]),
        }

    # -- magnitude ---------------------------------------------------------------------------------------------------

    def _first_norms(self, keys: list[str], norms: Tensor) -> Tensor:
        """Return ‖G⁰‖ `[tasks]`, positive: that of the state, or of this step if there is none or the burn-in ends."""
        saved = keyed.read(self.first_norms, keys, 1.0).to(norms)
        measure_now = [
            key not in self.first_norms or (self.burn_in > 0 and self.gradients_seen[key] == self.burn_in)
            for key in keys
        ]
        if not any(measure_now):
            return saved
        nonzero = norms > 0
        same_key = norms.new_tensor([[one == other for other in keys] for one in keys]) * nonzero
        now = (same_key @ norms) / same_key.sum(1).clamp_min(1)  # the mean of the nonzero norms of a key
        return torch.where(torch.tensor(measure_now) & (now > 0), now, saved)

    def _new_norms(self, keys: list[str], norms: Tensor) -> dict[str, dict[str, float]]:
        nonzero = [place for place, norm in enumerate(norms.tolist()) if norm > 0]
        nonzero_keys = [keys[place] for place in nonzero]
        first_norms = keyed.write(self.first_norms, nonzero_keys, self._first_norms(keys, norms)[nonzero])
        # The count stops after `burn_in`, because it is only compared with it.
        seen = {key: min(self.gradients_seen.get(key, 0), self.burn_in) + 1 for key in nonzero_keys}
        return {"first_norms": first_norms, "gradients_seen": self.gradients_seen | seen}

    # -- rotation ----------------------------------------------------------------------------------------------------

    def _rotation(self, key: str, features: int) -> Geodesic | None:
        if key in self.rotations:
            rotation = Geodesic(self.rotations[key])
            check_features("rotograd", rotation, self.size or features)
            return rotation
        if self.start == "haar":
            # One seed per key, independent of the order of the keys.
            return Geodesic(haar(self.size or features, zlib.crc32(f"{self.seed}/{key}".encode())))
        return None

    def _new_rotations(self, keys: list[str], heads: Tensor) -> dict[str, dict[str, Any]]:
        """Return all rotations after a step on gradients at the heads `[tasks, samples, m]`, as new state."""
        features = heads.shape[-1]
        rotations = {key: self._rotation(key, features) for key in keys}
        at_encoder = rotate_tasks([rotations[key] for key in keys], heads, transposed=True)
        mean_norm = lengths(heads).mean()
        if not mean_norm > 0:
            return {}
        goal = unit_vectors(at_encoder.flatten(1)).reshape(at_encoder.shape).mean(0)
        if self.variant == "reference":
            goal = goal * (lengths(at_encoder.mean(0)[None])[0] / mean_norm)
        # A rotation uses the mean over its samples; times their number it is the sum over the batch.
        pull = keyed.mean(keys, heads * (heads.shape[1] / mean_norm))
        turned = {}
        for key, own in pull.items():
            if bool(own.any()):
                rotation = rotations[key] or Geodesic.identity(goal[:, : self.size])
                turned[key] = rotation.step(own, goal, self.lr * self.decay ** self.turns.get(key, 0))
        turns = {key: self.turns.get(key, 0) + 1 for key in turned}
        tensors = {key: rotation.tensor for key, rotation in turned.items()}
        return {"rotations": self.rotations | tensors, "turns": self.turns | turns}

    # -- shapes ------------------------------------------------------------------------------------------------------

    def _samples(self, step: Step) -> Tensor:
        """Return the gradients at the heads, float64 `[tasks, queries · positions, features]`."""
        grads = step.feature_grads
        self._check(grads, step.tasks, "feature_grads")
        return grads.double().movedim(2, -1).flatten(1, -2)

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


def lengths(gradients: Tensor) -> Tensor:
    """Return the Frobenius norms of `[tasks, ...]`, with derivative zero at zero."""
    largest = gradients.detach().abs().amax()  # rows are divided by it before they are squared
    unit = torch.where(largest > 0, largest, 1.0)
    return unit * safe_sqrt((gradients / unit).flatten(1).square().sum(1))


def equalizing_weights(norms: Tensor, first: Tensor) -> Tensor:
    """Return C/‖G_k‖ `[tasks]` for norms ‖G‖ and first norms ‖G⁰‖ > 0; one for a zero gradient."""
    nonzero = norms > 0
    ratios = norms / first
    total = ratios.sum()
    common = (ratios * norms).sum() / torch.where(total > 0, total, torch.ones_like(total))
    return torch.where(nonzero, common / torch.where(nonzero, norms, torch.ones_like(norms)), torch.ones_like(norms))


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=RotoGrad,
        summary="scales feature gradients to one norm, rotates features to align them (RotoGrad)",
        reference="Javaloy and Valera 2022, arXiv 2103.02631",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant", "orthogonal"},
        needs={"features"},
    )
