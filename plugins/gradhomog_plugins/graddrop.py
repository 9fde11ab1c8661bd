"""GradDrop: in each coordinate keep the gradients of one sign, drawn by how much of their mass has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradhomog import Homogenizer, HomogenizerSpec, OptionError, Rows, TaskKey, hookimpl
from gradhomog_plugins._lots import Lots, draw
from gradhomog_plugins._one_sign import block_columns, drop, drop_into, keep


def graddrop(
    leak: float | Sequence[float] = 0.0,
    sharpness: float = 1.0,
    on: Literal["parameters", "features"] = "parameters",
    seed: int = 0,
    scale: Literal["mean", "paper"] = "mean",
) -> Homogenizer:
    """In each coordinate, of the tasks' entries only the positive or only the negative ones are kept, at random.

    P = ½ (1 + Σ_i g_i / Σ_i |g_i|),  f(P) = ½ + sharpness · (P − ½) within [0, 1],  U uniform in [0, 1)
    M_i = [g_i > 0] where U < f(P), else [g_i < 0]
    d = 1/N Σ_i (ℓ_i + (1 − ℓ_i) M_i) g_i  (`scale="mean"`)  or  Σ_i (ℓ_i + (1 − ℓ_i) M_i) g_i  (`scale="paper"`)

    Without leak that is (S + A)/2 where U < f(P), else (S − A)/2, with S = Σ_i g_i and A = Σ_i |g_i|.

    Args:
        leak: ℓ in [0, 1], the share of a row that is never dropped: of all tasks, or a list by slot. A task with leak 1
            passes whole, as the one of interest beside auxiliary ones.
        sharpness: ≥ 1, slope of f at ½. 1 is the identity, for which the mean over many draws is an attention by mass;
            a large one keeps the sign of the sum.
        on: `"parameters"`: coordinates are parameters. `"features"`, the layer of the paper: rows must be the losses'
            derivatives by features z of one batch that all tasks share, `[tasks, batch, *features]`, as
            `gradhomog.backward(..., features=views, level="features")` hands over, with
            `views = gradhomog.task_features(z, ...)` for the heads. P is then that of G_i = Σ_batch sgn(z) ⊙ ∇_z L_i,
            with one draw per feature, and what is masked of a task is masked in all of the batch.
        seed: of the generator that U is drawn from; never the global one.
        scale: see above.

    Differentiable in the rows, with what was drawn as constants, where no entry is zero (there the derivative is ½ of
    an entry kept). A coordinate that is zero in all rows gives zero; zero rows and one task need no exception. State:
    the generator. The draw depends on the number of coordinates alone: not on the rows, their dtype or device.

    The direction is no mixture of the rows: all rows become it. Cost: three reads of the rows in blocks that fit the
    cache, P random numbers (drawn on the CPU), the memory of the direction and at most once more of it or 2¹⁶
    numbers (of float32 and float64 rows without graph and leak; else blocks of all rows, with a graph all of them).

    Source: Chen et al. 2020, "Just Pick a Sign", arXiv 2010.06808, equation 1 and algorithm 1.

    Deviations: (1) the mean by default; (2) no epsilon beside Σ|g_i|; (3) on features, a task whose G_i is zero in a
    feature keeps it, as in the authors' code (lingvo) and not in algorithm 1, so that tasks that agree are left alone;
    (4) lingvo multiplies the result by its norm over that of Σ g_i, which says to keep the norm and does the opposite;
    the paper has no such factor; (5) `sharpness` is lingvo's linear `keep_prob_function_scale`; values below 1, and its
    sigmoid, drop coordinates in which all tasks agree; (6) TorchJD has no layer on features, LibMTL no parameters;
    SamsungLabs' code draws once per task and not per coordinate, and reverses the leak.

    >>> import torch, gradhomog
    >>> jacobian = torch.tensor([[3.0, 1.0, 2.0], [3.0, -1.0, -4.0]])
    >>> gradhomog.pipeline("graddrop").combine(jacobian)  # the first is agreed on
    tensor([ 3.0000,  0.5000, -2.0000])
    """
    leaks = [leak] if isinstance(leak, (int, float)) else list(leak)
    for value in leaks:
        if not 0 <= value <= 1:
            raise OptionError(f"graddrop: `leak` must be in [0, 1]; got {value!r}.")
    if not leaks:
        raise OptionError("graddrop: `leak` must be a number, or a list of one number per task; got an empty list.")
    if not 1 <= sharpness < math.inf:
        raise OptionError(
            f"graddrop: `sharpness` must be at least 1 and finite, or coordinates that all tasks agree on are dropped; "
            f"got {sharpness!r}."
        )
    options = Options(leak if isinstance(leak, (int, float)) else tuple(leaks), sharpness, scale)
    return OnParameters(options, seed) if on == "parameters" else OnFeatures(options, seed)


@dataclass(frozen=True)
class Options:
    leak: float | tuple[float, ...]
    sharpness: float
    scale: Literal["mean", "paper"]

    def leaks(self, like: Tensor) -> Tensor | None:
        """ℓ `[tasks]`; None if nothing leaks."""
        tasks = like.shape[0]
        if isinstance(self.leak, tuple) and len(self.leak) != tasks:
            raise OptionError(
                f"graddrop: `leak` must hold one number per task; got {len(self.leak)} for {tasks} tasks. "
                "Give one number for all, or do without nonfinite='drop'."
            )
        if not any(self.leak) if isinstance(self.leak, tuple) else self.leak == 0:
            return None
        return torch.tensor(self.leak, dtype=like.dtype, device=like.device).expand(tasks)

    def divisor(self, tasks: int) -> int:
        return tasks if self.scale == "mean" else 1


class OnParameters(Homogenizer):
    """See `graddrop`."""

    carried = ("generator",)

    def __init__(self, options: Options, seed: int) -> None:
        self.options, self.generator = options, torch.Generator().manual_seed(seed)

    def rows(self, jacobian: Rows) -> Rows:
        lots = Lots(self.generator)
        if isinstance(jacobian, Tensor):
            return self._dropped(jacobian, lots)
        return {name: self._dropped(value, lots) for name, value in jacobian.items()}

    def _dropped(self, value: Tensor, lots: Lots) -> Tensor:
        matrix = value.reshape(value.shape[0], -1)
        if matrix.requires_grad:  # all that a block computes is kept anyway
            vector = self._of_columns(matrix, lots)
        else:
            vector = matrix.new_empty(matrix.shape[1])
            if matrix.dtype.itemsize >= 4 and self.options.leaks(matrix) is None:
                drop_into(vector, matrix, lots, self.options.sharpness, self.options.divisor(len(matrix)))
            else:
                columns = block_columns(matrix.shape[1])
                for start in range(0, matrix.shape[1], columns):
                    part = matrix[:, start : start + columns]
                    vector[start : start + columns] = self._of_columns(part, lots)
        return vector.reshape(value.shape[1:]).expand_as(value)

    def _of_columns(self, matrix: Tensor, lots: Lots) -> Tensor:
        rows = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
        drawn = lots.fill(rows.new_empty(rows.shape[1])) / lots.unit
        kept = drop(rows, drawn, self.options.leaks(rows), self.options.sharpness, self.options.divisor(len(rows)))
        return kept.to(matrix.dtype)


class OnFeatures(Homogenizer):
    """See `graddrop`."""

    carried = ("generator",)

    def __init__(self, options: Options, seed: int) -> None:
        self.options, self.generator = options, torch.Generator().manual_seed(seed)
        # Within a step, from `transform` to `rows`: the signs of each task's features, one tensor if they are the same.
        self._signs: list[Tensor] = []
        self._slots: set[int] = set()

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> Tensor:
        slots, signs = {key.slot for key in keys}, features.detach().sign()
        if slots & self._slots:  # a task comes again: another step has begun, and the last came to nothing
            self._signs, self._slots = [], set()
        self._slots |= slots
        if not any(torch.equal(signs, known) for known in self._signs):
            self._signs.append(signs)
        return features

    def rows(self, jacobian: Rows) -> Rows:
        seen, self._signs, self._slots = self._signs, [], set()
        named = {"": jacobian} if isinstance(jacobian, Tensor) else jacobian
        if len(seen) != 1 or len(named) != 1 or not all(_by(seen[0], value) for value in named.values()):
            shapes = " and ".join(str(list(signs.shape)) for signs in seen)
            told = (
                f"those that were seen are {shapes}, with different signs" if len(seen) > 1 else f"{shapes} were seen"
            )
            raise OptionError(
                "graddrop: `on` must be 'parameters' where rows are not derivatives by the features of one batch that "
                f"all tasks share, [tasks, batch, *features]; got rows of {[list(v.shape) for v in named.values()]}, "
                f"and of features {told if seen else 'none were seen'}. Use gradhomog.backward with level='features' "
                "and features=gradhomog.task_features(...), before other stages that transform; or on='parameters'."
            )
        found = {name: self._dropped(value, seen[0]) for name, value in named.items()}
        return found[""] if isinstance(jacobian, Tensor) else found

    def _dropped(self, value: Tensor, signs: Tensor) -> Tensor:
        tasks, batch = value.shape[:2]
        rows = value.reshape(tasks, batch, -1).to(torch.promote_types(value.dtype, torch.float32))
        # Task by task: no product is as large as all rows.
        sums = torch.stack([(row * signs.reshape(batch, -1)).sum(0) for row in rows])
        kept = keep(sums, draw(sums.shape[1], self.generator).to(sums), self.options.sharpness).to(sums)
        leaks = self.options.leaks(sums)
        if leaks is not None:
            kept = torch.lerp(kept, torch.ones_like(kept), leaks[:, None])
        total = torch.zeros_like(rows[0])
        for row, share in zip(rows, kept / self.options.divisor(tasks), strict=True):
            total = torch.addcmul(total, row, share)
        return total.to(value.dtype).reshape(value.shape[1:]).expand_as(value)


def _by(signs: Tensor, rows: Tensor) -> bool:
    """Whether rows can be derivatives by the features that had these signs, `[1, batch, *features]`."""
    return (
        rows.dim() > 1 and signs.shape[0] == 1 and signs.shape[1] == rows.shape[1] and signs.numel() == rows[0].numel()
    )


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=graddrop,
        summary="keeps in each coordinate the gradients of one sign, drawn by its share of their mass",
        reference="Chen et al. 2020, arXiv 2010.06808",
        traits={"differentiable", "stateful", "stochastic", "permutation_equivariant", "scale_equivariant"},
    )
