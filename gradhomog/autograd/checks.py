"""Raise for options of a homogenized backward pass that are invalid, without effect, or in contradiction."""

from __future__ import annotations

from gradhomog.autograd.apply import Heads, Level
from gradhomog.autograd.batch import Features
from gradhomog.autograd.parameter_groups import Per
from gradhomog.autograd.task_features import TaskFeatures
from gradhomog.errors import OptionError
from gradhomog.ranks.collectives import Collectives
from gradhomog.step.pipelines import Pipeline


def check_options(
    pipe: Pipeline, features: Features | None = None, level: Level = "parameters", per: Per = "model",
    heads: Heads = "own", chunks: int = 1, create_graph: bool = False, features_follow: bool = False,
) -> None:  # fmt: skip
    """Raise for invalid options, and for options without effect or in contradiction.

    `features_follow`: features are passed later, with each batch.

    Raises:
        OptionError: the message names the option.
    """
    if not isinstance(pipe, Pipeline):
        raise OptionError(
            f"`pipe` must be a pipeline; got {pipe!r}. Create it once before the loop: "
            "pipe = gradhomog.pipeline('pcgrad')."
        )
    if level not in ("parameters", "features"):
        raise OptionError(f"`level` must be 'parameters' or 'features'; got {level!r}.")
    if type(chunks) is not int or chunks < 1:
        raise OptionError(f"`chunks` must be an integer >= 1; got {chunks!r}.")
    if heads not in ("own", "weighted"):
        raise OptionError(f"`heads` must be 'own' or 'weighted'; got {heads!r}.")
    if level == "features" and per != "model":
        raise OptionError(
            f"`per` groups parameters, so it must be 'model' if level='features'; got per={per!r}. Remove `per` or "
            "`level`."
        )
    if level == "features" and pipe.stages.choosing:
        raise OptionError(
            f"{pipe.stages.choosing[0].selector} keeps rows from step to step, but gradients w.r.t. features belong to "
            "the examples of one batch. Use level='parameters'."
        )
    if heads == "weighted" and create_graph:
        raise OptionError("heads='weighted' cannot keep a graph; use heads='own' with create_graph=True.")
    replacing = [member.selector for member in pipe.members if member.stage == "rows"]
    if heads == "weighted" and (replacing or per != "model"):
        reason = f"{' and '.join(replacing)} replaces rows" if replacing else f"per={per!r} has weights per group"
        raise OptionError(
            "heads='weighted' requires a direction that is a weighted mean of the tasks' gradients, but "
            f"{reason}. Use heads='own'."
        )
    if features_follow:
        return
    reading = [m.selector for m in pipe.members if m.declares_needs and "features" in m.needs]
    if features is None and (level == "features" or reading):
        reason = f"{' and '.join(reading)} reads features" if reading else "level='features' requires features"
        raise OptionError(f"{reason}: pass the output of the shared part of the model as `features`.")
    transforms = [member.selector for member in pipe.members if member.homogenizer.overrides("transform")]
    if transforms and not isinstance(features, TaskFeatures):
        verb = "transform" if len(transforms) > 1 else "transforms"
        raise OptionError(
            f"{' and '.join(transforms)} {verb} the input of the heads. Create it by "
            "views = gradhomog.task_features(z, pipe, tasks=N), pass views[i] to head i, and pass features=views here."
        )


def check_attached(pipe: Pipeline) -> None:
    """Raise if a homogenizer acts in the encoder but is not attached: the step would be computed without it.

    Raises:
        OptionError: the message names the homogenizer.
    """
    attaching = [str(member.selector) for member in pipe.stages.attaching]
    if attaching and not pipe.is_attached:
        raise OptionError(
            f"{' and '.join(attaching)} must be attached to the encoder, in whose forward pass it acts. "
            "Compute the losses and take the step within `with pipe.attached(encoder):`, or use a learner or "
            "`meta_step(..., encoder=encoder)`."
        )


def check_discovered_parameters(pipe: Pipeline, per: Per, collectives: Collectives | None) -> None:
    """Raise for state by parameter name without `parameters`: discovered names depend on the order of the losses.

    Raises:
        OptionError: a homogenizer keeps rows, `per` keeps a state per group, or ranks exchange rows.
    """
    if collectives is not None:
        raise OptionError("across ranks `parameters` is required: each rank could discover others. Pass the module.")
    keeping = [
        m.selector for m in pipe.members
        if m.spec is not None and "stateful" in m.spec.traits and m.declares_needs and "jacobian" in m.needs
    ]  # fmt: skip
    if per != "model" or keeping:
        reason = f"{' and '.join(keeping)} keeps rows" if keeping else "`per` keeps a state"
        raise OptionError(f"{reason} by the parameters' names. Pass the shared module as `parameters`.")


def check_same_domains(views: tuple[str, ...], domains: tuple[str, ...]) -> None:
    if views != domains:
        raise OptionError(
            "the views in `features` must have the same domains as the losses: "
            f"{list(domains) or 'domains without names'}; got {list(views) or 'domains without names'}. "
            "Pass domains=[...] to task_features in the order of the losses."
        )
