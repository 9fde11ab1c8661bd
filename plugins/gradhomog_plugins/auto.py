"""The pipeline that needs no tuning: weights from the largest norms of the gradients."""

from typing import Any

from gradhomog import HomogenizerSpec, hookimpl


def auto() -> list[tuple[str, dict[str, Any]]]:
    """The recommended pipeline for losses whose weights were not tuned: `peakscale` with its defaults.

        d = 1/N Σ_i ω_i g_i,  ω_i ∝ 1/max √v_i with mean 1;  v_i a running mean of min(‖g_i‖, 3 √v_i)²

    Use it when losses are weighted by guess, or not at all. In its first 20 steps each task's gradient is measured, and
    later in one of 10 (N − 1) + 1 steps; the others are steps of the mean with fixed weights. A factor of a loss has no
    effect on the direction. For one task, and for equal norms, it is the plain mean. Measurements, and where it fails:
    docs/results/auto.md.

    It is a preset: the pipeline contains `peakscale`. A later version may contain another method that is better on the
    suite; write `peakscale` where results must not change.

    Differentiable in the rows, as `peakscale`.

    State: that of `peakscale`.

    Cost: one gradient per task in 20 steps; then 1.1 backward passes on average.

    Source: the choice is ours, docs/decisions/0050-auto.md; for the method see `peakscale`.

    Deviations: those of `peakscale`.

    >>> import gradhomog
    >>> [type(homogenizer).__name__ for homogenizer in gradhomog.pipeline("auto")]
    ['PeakScale']
    """
    return [("peakscale", {})]


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=auto,
        summary="needs no tuning: weights from the largest norms of the gradients: one backward pass in most steps",
        reference="docs/results/auto.md",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"norms"},
    )
