"""RotoGBML: a preset of invariant self-information, rotation and reweighting."""

from collections.abc import Mapping
from typing import Any, Literal

from gradhomog import HomogenizerSpec, hookimpl


def rotogbml(
    isi: bool | Mapping[str, Any] = True,
    rotate: bool | Mapping[str, Any] = True,
    reweight: bool | Mapping[str, Any] = True,
    key: Literal["domain", "slot"] = "domain",
    variant: Literal["corrected", "paper"] = "corrected",
) -> list[tuple[str, dict[str, Any]]]:
    """A preset: the pipeline `isi + rotate + reweight`, each with its defaults, with options, or omitted.

        isi(…) + rotate(key=key, variant=variant, …) + reweight(key=key, variant=variant, …)

    Args:
        isi, rotate, reweight: true, false, or a table of options, such as `reweight={"beta": 0.1}`.
        key: state of rotations and weights by `"domain"`, the names of the tasks (their positions where they have
            none), or by `"slot"`, their positions, as in the paper's experiments with one domain.
        variant: variant of `rotate` and `reweight`; `"paper"` implements equations 4 to 6 literally.

    Use it when you reproduce RotoGBML, or when its three symptoms occur together: misleading backgrounds (`isi`),
    conflicting feature gradients (`rotate`), and gradient norms that differ (`reweight`). For one symptom use that
    module alone. In docs/results/ablation.md `isi` was the only module with a visible effect, where textures misled.

    With all three omitted it is exactly the plain learner (every bit is equal). The pipeline contains the modules
    themselves, and reports have an entry for each of them.

    Differentiable in the rows; see the modules for the rest.

    State: that of the modules.

    Cost: that of the modules.

    Source: Zhang et al. 2023 (RotoGBML), arXiv 2303.06679, algorithm 1.

    Deviations: those of the modules; see each.

    >>> import gradhomog
    >>> pipe = gradhomog.pipeline("rotogbml(isi=false, reweight={'beta': 0.1})")
    >>> pipe, [type(homogenizer).__name__ for homogenizer in pipe]
    (Pipeline('rotogbml(isi=false, reweight={"beta": 0.1})', nonfinite='raise'), ['Rotate', 'Reweight'])
    """
    common: dict[str, Any] = {"key": key, "variant": variant}
    modules: list[tuple[str, bool | Mapping[str, Any], dict[str, Any]]] = [
        ("isi", isi, {}), ("rotate", rotate, common), ("reweight", reweight, common),
    ]  # fmt: skip
    return [
        (name, {**shared, **(own if isinstance(own, Mapping) else {})})
        for name, own, shared in modules
        if own is not False
    ]


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=rotogbml,
        summary="isi, rotate and reweight together (RotoGBML)",
        reference="Zhang et al. 2023, arXiv 2303.06679, algorithm 1",
        traits={"differentiable", "stateful", "stochastic", "scale_equivariant", "rotation_equivariant", "orthogonal"},
        needs={"losses", "norms", "features"},
    )
