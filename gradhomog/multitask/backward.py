"""`backward`: losses in, homogenized gradients in `.grad`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradhomog.errors import OptionError
from gradhomog.homogenization import Homogenization
from gradhomog.multitask.collected import Features, collect, without_factor
from gradhomog.multitask.deferred import DeferredRows
from gradhomog.multitask.derivatives import ThroughFeatures
from gradhomog.multitask.given import Losses, Parameters
from gradhomog.multitask.groups import Per, grouped
from gradhomog.multitask.settle import Heads, Level, Way, settle
from gradhomog.multitask.task_features import TaskFeatures
from gradhomog.pipelines import Pipeline


def backward(
    losses: Losses,
    pipe: Pipeline,
    *,
    parameters: Parameters | None = None,
    features: Features | None = None,
    level: Level = "parameters",
    per: Per = "model",
    heads: Heads = "own",
    domains: Sequence[str] | None = None,
    targets: Tensor | None = None,
    scaler: torch.amp.GradScaler | None = None,
    create_graph: bool = False,
    retain_graph: bool = False,
    chunks: int = 1,
    inspect: bool = False,
) -> Homogenization:
    """In place of `sum(losses).backward()`: `.grad` of what the tasks share is the homogenized mean of their gradients.

    θ.grad += 1/N Σ_i (C J)_i with J_i = ∂L_i/∂θ for shared parameters θ;  φ_i.grad += ∂L_i/∂φ_i for the others.

    Args:
        losses: one scalar per task, in a tensor, a sequence, or a dict by the tasks' names (which are then `domains`).
        pipe: made once, before the loop: what homogenizers carry from step to step lives in it.
        parameters: what the tasks share: a module, its `parameters()` or `named_parameters()`, or a dict. Without it:
            the leaves that `features` reach, or those that at least two losses reach. A shared parameter that only
            some of the losses reach has zeros in the rows of the others, which is what its derivative is.
        features: what the shared part returned and the heads start from, a tensor or several: the losses are
            differentiated down to it once, and only the shared part is left for the rows. Required by homogenizers that
            look at features, by those that transform them (what `gradhomog.task_features` returns) and by
            `level="features"`. All of the shared part must be seen through it.
        level: `"parameters"`; or `"features"`: the rows are ∂L_i/∂z, and one pass through the shared part is all that
            is left after they are homogenized (an upper bound of the criterion: Sener and Koltun 2018, section 3.3).
        per: homogenize all parameters together (`"model"`), those of each layer (`"layer"`, by name), each tensor
            (`"tensor"`), or groups by glob patterns over names. Each group has its own state, within `pipe`.
        heads: `"own"`: every loss's own gradient, whatever weight the task has in the shared part; `"weighted"`: 1/N of
            its weight times that, as if the weighted mean of the losses were differentiated.
        domains, targets: as in `Pipeline.combine`.
        scaler: of a half-precision loop. Give the losses as they are: derivatives are formed at its scale, rows are
            shown without it, and `.grad` is written with it, for `scaler.step`. If a row overflows, infinity is
            written to everything, whatever the pipeline's policy, so that the scaler skips the step, and the
            homogenizers learn nothing from it.
        create_graph: keep the graph of what is written. Every homogenizer must claim `differentiable`.
        retain_graph: keep the graph of the losses.
        chunks: for less memory, form the rows of so many groups of parameters one after the other and keep none: norms
            and inner products take up to `chunks` times the passes, the direction one more. Rows are whole all the same
            where homogenizers work on them, with `per`, with `nonfinite="drop"`, and where losses share a head.
        inspect: compute the Gramian for the result even if no homogenizer needs it.

    Returns:
        What the step came to: direction by name (which is all there is for tensors that are no leaves), weights,
        Gramian, cosines, what homogenizers measured. Where `.grad` was None, the direction is it: the same memory.

    Gradients are added to what `.grad` holds, as `backward` does. `gradhomog.accumulated` adds up rows of several
    batches before they are homogenized. Frozen parameters and those that no loss reaches are left alone.

    Raises:
        OptionError: a loss is no scalar or has no graph; nothing is shared; a loss reaches shared parameters past the
            features; an option that does not fit the pipeline.
        NonfiniteError, NotDifferentiableError, PluginRunError: as of `Pipeline.combine`; nothing was written.

    Cost: N backward passes; the graph is freed with the last. One pass in all where no homogenizer looks at norms,
    inner products or rows (the plain mean, fixed weights, weights from losses or, with `features`, from their
    derivatives) and losses share nothing else: then nobody can tell which task made a gradient NaN. Memory: N
    gradients of the shared parameters, as autograd left them: none is concatenated or copied; 1/`chunks` of that.

    >>> import torch, gradhomog
    >>> _ = torch.manual_seed(0)
    >>> encoder, heads = torch.nn.Linear(3, 4), torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(2))
    >>> z = encoder(torch.randn(5, 3))
    >>> losses = {"height": heads[0](z).square().mean(), "weight": (heads[1](z) - 1).square().mean()}
    >>> step = gradhomog.backward(losses, gradhomog.pipeline("pcgrad"), parameters=encoder, features=z)
    >>> step.cosines.shape, encoder.weight.grad.shape, heads[0].weight.grad.shape
    (torch.Size([2, 2]), torch.Size([4, 3]), torch.Size([1, 4]))
    """
    check(pipe, features, level, per, heads, chunks)
    factor = scale_of(scaler, losses)
    overflow = scaler is not None and scaler.is_enabled()
    shown = any("features" in member.needs for member in pipe.members)
    # One pass from loss to parameters is the cheaper way, unless what lies between is looked at.
    through = shown or level == "features"
    batch = collect(losses, parameters, features, factor, create_graph, retain_graph, through, shown)
    if parameters is None:
        check_found(pipe, per)
    if isinstance(features, TaskFeatures):
        _check_same_domains(features.domains, tuple(domains or batch.names or ()))
    way = Way(domains, targets, level, per, heads, inspect, overflow)
    if level == "features":
        assert isinstance(batch.derivatives, ThroughFeatures)  # by `through`
        return settle(pipe, batch, feature_rows(batch.derivatives, factor), way)
    if per != "model":
        grouped(list(batch.derivatives.graph.shared), per)  # what is wrong with it is told before anything is computed
    drop = pipe.nonfinite == "drop" and not overflow
    first = drop or per != "model" or any(m.declares_needs and "rows" in m.needs for m in pipe.members)
    return settle(pipe, batch, DeferredRows(batch.derivatives, formed_first=first, chunks=chunks), way)


def check(
    pipe: Pipeline, features: Features | None = None, level: Level = "parameters", per: Per = "model",
    heads: Heads = "own", chunks: int = 1, asked_later: bool = False,
) -> None:  # fmt: skip
    """Refuse options that say nothing, or that do not fit each other. `asked_later`: for features, batch by batch.

    Raises:
        OptionError.
    """
    if not isinstance(pipe, Pipeline):
        raise OptionError(
            f"`pipe` must be a pipeline, made once before the loop: pipe = gradhomog.pipeline('pcgrad'); got {pipe!r}."
        )
    if level not in ("parameters", "features"):
        raise OptionError(f"`level` must be 'parameters' or 'features'; got {level!r}.")
    if not isinstance(chunks, int) or chunks < 1:
        raise OptionError(f"`chunks` must be a whole number of at least 1; got {chunks!r}.")
    if heads not in ("own", "weighted"):
        raise OptionError(f"`heads` must be 'own' or 'weighted'; got {heads!r}.")
    if level == "features" and per != "model":
        raise OptionError("`per` groups parameters; with level='features' there are none to group. Leave one out.")
    replacing = [member.selector for member in pipe.members if member.homogenizer.overrides("rows")]
    if heads == "weighted" and (replacing or per != "model"):
        who = f"{' and '.join(replacing)} replaces rows" if replacing else f"per={per!r} weighs each group apart"
        raise OptionError(
            "heads='weighted' needs a step that is one weighted mean of the tasks' gradients, but "
            f"{who}. Use heads='own'."
        )
    if asked_later:
        return
    looking = [m.selector for m in pipe.members if m.declares_needs and "features" in m.needs]
    if features is None and (level == "features" or looking):
        who = f"{' and '.join(looking)} looks at features" if looking else "level='features' is about features"
        raise OptionError(f"{who}: pass what the shared part of the model returned as `features`.")
    transforms = [member.selector for member in pipe.members if member.homogenizer.overrides("transform")]
    if transforms and not isinstance(features, TaskFeatures):
        change = "change" if len(transforms) > 1 else "changes"
        raise OptionError(
            f"{' and '.join(transforms)} {change} what the heads see. Give them "
            "views = gradhomog.task_features(z, pipe, tasks=N), and pass features=views."
        )


def check_found(pipe: Pipeline, per: Per) -> None:
    """Refuse what needs names of its own where parameters were found: they are called by the order they were met in.

    Raises:
        OptionError.
    """
    keeping = [
        m.selector for m in pipe.members
        if m.spec is not None and "stateful" in m.spec.traits and m.declares_needs and "rows" in m.needs
    ]  # fmt: skip
    if per != "model" or keeping:
        who = f"{' and '.join(keeping)} keeps rows" if keeping else "per keeps a state"
        raise OptionError(f"{who} by the parameters' names. Pass the shared module as `parameters`.")


def _check_same_domains(views: tuple[str, ...], domains: tuple[str, ...]) -> None:
    if views != domains:
        raise OptionError(
            f"the views in `features` were made for domains {list(views) or 'unnamed'}, the losses are of "
            f"{list(domains) or 'unnamed ones'}. Pass domains=[...] to task_features in the order of the losses."
        )


def scale_of(scaler: torch.amp.GradScaler | None, losses: Losses) -> float:
    """The factor that a scaler puts on derivatives at the moment; 1 without one."""
    if scaler is None or not scaler.is_enabled():
        return 1.0
    some = next(iter(losses.values() if isinstance(losses, Mapping) else losses))
    return float(scaler.scale(torch.ones((), device=some.device)))  # made on the first call


def feature_rows(derivatives: ThroughFeatures, factor: float) -> dict[str, Tensor]:
    """∂L_i/∂z as rows: `[tasks, *shape]`, float32 or wider, by the place of the tensor among the features."""
    columns = list(zip(*derivatives.cotangents, strict=True))
    names = ["features"] if len(columns) == 1 else [f"features.{index}" for index in range(len(columns))]
    return {
        name: torch.stack([without_factor(slope, top, factor) for slope in column])
        for name, column, top in zip(names, columns, derivatives.features, strict=True)
    }
