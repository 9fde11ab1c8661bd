"""`backward`: losses in, homogenized gradients in `.grad`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradhomog.autograd.apply import (
    ComputedStep,
    Heads,
    Level,
    Options,
    compute_step,
    feature_jacobian,
    write,
)
from gradhomog.autograd.batch import Features, Trace, differentiate, trace
from gradhomog.autograd.derivatives import ThroughFeatures
from gradhomog.autograd.groups import Per, group_names
from gradhomog.autograd.inputs import Losses, Parameters, TaskLosses, require_one_process
from gradhomog.autograd.lazy import LazyJacobian
from gradhomog.autograd.task_features import TaskFeatures
from gradhomog.errors import OptionError
from gradhomog.homogenization import Homogenization
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
            A task whose loss is None, or a constant without a graph, is skipped: N excludes it, its head gets no
            gradient, and its state does not change.
        pipe: made once, before the loop: it holds the homogenizers' states.
        parameters: the shared ones: a module, its `parameters()` or `named_parameters()`, or a dict. Without it: the
            leaves that `features` depend on, or those of at least two losses. A shared parameter that a loss does not
            depend on has zeros in its row.
        features: the output of the shared part, from which the heads start, a tensor or several: the losses are
            differentiated down to it once, and the rows then need passes through the shared part only. Required by
            homogenizers that read features, by those that transform them (the result of `gradhomog.task_features`) and
            by `level="features"`. Losses may depend on the shared part only through it.
        level: `"parameters"`; or `"features"`: the rows are ∂L_i/∂z, and one pass through the shared part follows after
            they are homogenized (an upper bound of the criterion: Sener and Koltun 2018, section 3.3).
        per: homogenize all parameters together (`"model"`), those of each layer (`"layer"`, by name), each tensor
            (`"tensor"`), or groups by glob patterns over names. Each group has its own state, within `pipe`.
        heads: `"own"`: each head gets the gradient of its loss; `"weighted"`: that times weight/N, as if the weighted
            mean of the losses were differentiated.
        domains, targets: as in `Pipeline.combine`.
        scaler: of a half-precision loop. Pass the losses without its scale: gradients are computed with it, the
            homogenizers see them without it, and `.grad` is written with it, for `scaler.step`. If a row overflows,
            infinity is written to every `.grad`, with any policy for NaN, so that the scaler skips the step; no state
            changes.
        create_graph: keep the graph of what is written. Every homogenizer must claim `differentiable`.
        retain_graph: keep the graph of the losses.
        chunks: for less memory, compute the rows in this many groups of parameters and keep none: norms and inner
            products take up to `chunks` times the passes, the direction one more. Without effect where homogenizers
            read rows, with `per`, with `nonfinite="drop"`, and where losses share a head.
        inspect: compute the Gramian for the result even if no homogenizer needs it.

    Returns:
        The result of the step: direction by name (the only result for tensors that are no leaves), weights, Gramian,
        cosines, measurements. Where `.grad` was None, it is the direction, in the same memory unless it was scaled.

    Gradients are added to `.grad`, as by `Tensor.backward`. `gradhomog.accumulated` adds up the rows of several batches
    before they are homogenized; `gradhomog.loss` is the same step behind a scalar's `backward()`. Frozen parameters and
    those that no loss depends on are not changed.

    Raises:
        OptionError: a loss is no scalar; none has a graph; nothing is shared; a loss reaches shared parameters past the
            features; an option does not fit the pipeline; the process is one of several ranks.
        NonfiniteError, NotDifferentiableError, PluginRunError: as of `Pipeline.combine`; nothing was written.

    Cost: N backward passes; the graph is freed with the last. One pass in all where no homogenizer reads norms, inner
    products or rows (the plain mean, fixed weights, weights from losses or, with `features`, from the gradients w.r.t.
    them) and losses share nothing else: then the task that made a gradient NaN cannot be named. Memory: N gradients of
    the shared parameters, as autograd left them; 1/`chunks` of that.

    >>> import torch, gradhomog
    >>> _ = torch.manual_seed(0)
    >>> encoder, heads = torch.nn.Linear(3, 4), torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(2))
    >>> z = encoder(torch.randn(5, 3))
    >>> losses = {"height": heads[0](z).square().mean(), "weight": (heads[1](z) - 1).square().mean()}
    >>> step = gradhomog.backward(losses, gradhomog.pipeline("pcgrad"), parameters=encoder, features=z)
    >>> step.cosines.shape, encoder.weight.grad.shape, heads[0].weight.grad.shape
    (torch.Size([2, 2]), torch.Size([4, 3]), torch.Size([1, 4]))
    """
    check_options(pipe, features, level, per, heads, chunks, create_graph)
    factor = scale_of(scaler, losses)
    found = trace(losses, parameters, features)
    if parameters is None:
        check_found(pipe, per)
    scaled = scaler is not None and scaler.is_enabled()
    options = step_options(found.tasks, features, domains, targets, level, per, heads, inspect, factor, scaled)
    step = compute(pipe, found, options, create_graph=create_graph, retain_graph=retain_graph, chunks=chunks)
    return write(step, heads)


def step_options(
    tasks: TaskLosses, features: Features | None, domains: Sequence[str] | None, targets: Tensor | None, level: Level,
    per: Per, heads: Heads, inspect: bool, factor: float, scaled: bool,
) -> Options:  # fmt: skip
    """The options of a step for the tasks that are present; `scaled`: a gradient scaler handles infinity."""
    if isinstance(features, TaskFeatures):
        _check_same_domains(features.domains, tuple(domains or tasks.names or ()))
    present = tasks.present(domains or tasks.names, "domains")
    if targets is not None and len(targets) == tasks.tasks > len(tasks.slots):
        targets = targets[list(tasks.slots)]
    return Options(present, targets, level, per, heads, inspect, factor, scaled)


def compute(
    pipe: Pipeline, found: Trace, options: Options, *, create_graph: bool = False, retain_graph: bool = False,
    chunks: int = 1,
) -> ComputedStep:  # fmt: skip
    """The step of traced losses, with nothing written yet."""
    reads_features = features_are_read(pipe)
    # One pass from loss to parameters is cheaper than two, unless the gradients w.r.t. the features are needed.
    batch = differentiate(
        found, factor=options.factor, create_graph=create_graph, retain_graph=retain_graph,
        through_features=reads_features or options.level == "features", show_features=reads_features,
    )  # fmt: skip
    if options.level == "features":
        assert isinstance(batch.derivatives, ThroughFeatures)  # by `through_features`
        return compute_step(pipe, batch, feature_jacobian(batch.derivatives), options)
    if options.per != "model":
        group_names(list(found.shared), options.per)  # its errors come before any gradient
    drop = pipe.nonfinite == "drop" and not options.scaled
    reads_rows = any(
        "jacobian" in m.needs for m in (*pipe.stages.acting, *pipe.stages.updating, *pipe.stages.measuring)
    )
    eager = drop or options.per != "model" or pipe.debug or reads_rows
    return compute_step(pipe, batch, LazyJacobian(batch.derivatives, eager=eager, chunks=chunks), options)


def features_are_read(pipe: Pipeline) -> bool:
    """Whether a homogenizer reads features: it declares so, or transforms them and declares nothing."""
    reading = [member for member in pipe.members if "features" in member.needs]
    return any(member.declares_needs or member.homogenizer.overrides("transform") for member in reading)


def check_options(
    pipe: Pipeline, features: Features | None = None, level: Level = "parameters", per: Per = "model",
    heads: Heads = "own", chunks: int = 1, create_graph: bool = False, features_follow: bool = False,
) -> None:  # fmt: skip
    """Refuse options without effect or in contradiction. `features_follow`: they are given batch by batch.

    Raises:
        OptionError.
    """
    require_one_process()
    if not isinstance(pipe, Pipeline):
        raise OptionError(
            f"`pipe` must be a pipeline, made once before the loop: pipe = gradhomog.pipeline('pcgrad'); got {pipe!r}."
        )
    if level not in ("parameters", "features"):
        raise OptionError(f"`level` must be 'parameters' or 'features'; got {level!r}.")
    if type(chunks) is not int or chunks < 1:
        raise OptionError(f"`chunks` must be a whole number of at least 1; got {chunks!r}.")
    if heads not in ("own", "weighted"):
        raise OptionError(f"`heads` must be 'own' or 'weighted'; got {heads!r}.")
    if level == "features" and per != "model":
        raise OptionError("`per` groups parameters; with level='features' there are none to group. Leave one out.")
    if heads == "weighted" and create_graph:
        raise OptionError("heads='weighted' has no graph to the weights; use heads='own' with create_graph=True.")
    replacing = [member.selector for member in pipe.members if member.stage == "rows"]
    if heads == "weighted" and (replacing or per != "model"):
        what = f"{' and '.join(replacing)} replaces rows" if replacing else f"per={per!r} weighs each group separately"
        raise OptionError(
            "heads='weighted' needs a step that is one weighted mean of the tasks' gradients, but "
            f"{what}. Use heads='own'."
        )
    if features_follow:
        return
    reading = [m.selector for m in pipe.members if m.declares_needs and "features" in m.needs]
    if features is None and (level == "features" or reading):
        what = f"{' and '.join(reading)} reads features" if reading else "level='features' needs features"
        raise OptionError(f"{what}: pass the output of the shared part of the model as `features`.")
    transforms = [member.selector for member in pipe.members if member.homogenizer.overrides("transform")]
    if transforms and not isinstance(features, TaskFeatures):
        change = "change" if len(transforms) > 1 else "changes"
        raise OptionError(
            f"{' and '.join(transforms)} {change} the input of the heads. Pass them "
            "views = gradhomog.task_features(z, pipe, tasks=N), and pass features=views here."
        )


def check_found(pipe: Pipeline, per: Per) -> None:
    """Reject state by parameter name where parameters were discovered: their names depend on the order of the losses.

    Raises:
        OptionError.
    """
    keeping = [
        m.selector for m in pipe.members
        if m.spec is not None and "stateful" in m.spec.traits and m.declares_needs and "jacobian" in m.needs
    ]  # fmt: skip
    if per != "model" or keeping:
        what = f"{' and '.join(keeping)} keeps rows" if keeping else "per keeps a state"
        raise OptionError(f"{what} by the parameters' names. Pass the shared module as `parameters`.")


def _check_same_domains(views: tuple[str, ...], domains: tuple[str, ...]) -> None:
    if views != domains:
        raise OptionError(
            f"the views in `features` were made for domains {list(views) or 'unnamed'}, the losses are of "
            f"{list(domains) or 'unnamed ones'}. Pass domains=[...] to task_features in the order of the losses."
        )


def scale_of(scaler: torch.amp.GradScaler | None, losses: Losses) -> float:
    """The current factor of a gradient scaler; 1 without one."""
    if scaler is None or not scaler.is_enabled():
        return 1.0
    entries = losses.values() if isinstance(losses, Mapping) else [losses] if isinstance(losses, Tensor) else losses
    device = next((loss.device for loss in entries if isinstance(loss, Tensor)), torch.device("cpu"))
    return float(scaler.scale(torch.ones((), device=device)))  # the scaler makes its factor at the first call
