"""The pipeline that needs no tuning: static weights from the norms of the first gradients."""

from typing import Any

from gradhomog import HomogenizerSpec, hookimpl


def auto() -> list[tuple[str, dict[str, Any]]]:
    """The recommended pipeline for losses whose weights were not tuned: `autoscale` with its defaults.

        d = 1/N Σ_i ω_i g_i,  ω_i ∝ (Σ_{t ≤ 20} ‖g_i(t)‖²)^(−1/2) with mean 1

    Use it when losses are weighted by guess, or not at all. In its first 20 steps each task's gradient is measured;
    then weights are fixed, and a step is that of the mean with these weights. A norm counts as at most three times the
    median of its task. A factor of a loss has no effect on the direction. For one task, and for equal norms, it is the
    plain mean. Measurements, and where it fails: docs/results/auto.md.

    It is a preset: the pipeline contains `autoscale`. A later version may contain another method that is better on the
    suite; write `autoscale` where results must not change.

    Differentiable in the rows, as `autoscale`.

    State: that of `autoscale`.

    Cost: one gradient per task in 20 steps; then one backward pass.

    Source: the choice is ours, docs/decisions/0050-auto.md; for the method see `autoscale`.

    Deviations: those of `autoscale`.

    >>> import gradhomog
    >>> [type(homogenizer).__name__ for homogenizer in gradhomog.pipeline("auto")]
    ['AutoScale']
    """
    return [("autoscale", {})]


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=auto,
        summary="needs no tuning: weights from the norms of the first gradients, then one backward pass per step",
        reference="docs/results/auto.md",
        traits={"differentiable", "stateful", "scale_equivariant", "rotation_equivariant"},
        needs={"norms"},
    )
