"""Checks that stages do not change their inputs, the homogenizer or global generators, and keep no graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradhomog.step.pipelines import Pipeline
from gradhomog.step.step import TaskKey
from gradhomog.testing import small_network
from gradhomog.testing.assertions import require_all_equal, require_equal
from gradhomog.testing.check_results import CheckFailure, check
from gradhomog.testing.snapshots import changed_generators, changed_names, find_objects, snapshot
from gradhomog.testing.subjects import HomogenizerSubject

Compare = Callable[..., Any]
"""Called with the homogenizer, the stage's name, the stage and its arguments; returns the stage's result."""

STAGES = ("transform", "mix", "rows", "update", "measured", "paper_scale")


def wrap_stages(pipe: Pipeline, compare: Compare) -> Pipeline:
    """Call every stage of a pipeline's homogenizers through `compare` from now on; return the pipeline."""
    for homogenizer in pipe:
        for stage in filter(homogenizer.overrides, STAGES):
            wrapped = functools.partial(compare, homogenizer, stage, getattr(homogenizer, stage))
            setattr(homogenizer, stage, wrapped)
    return pipe


def _run_all_stages(subject: HomogenizerSubject, pipe: Pipeline) -> None:
    """Run steps on a matrix, on a dict and through the encoder, so that every stage is called twice."""
    rows = torch.randn(4, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[1] = -2 * rows[0]
    inputs = subject.step_inputs(rows)
    caller_tensors = {"jacobian": rows, **{name: value for name, value in inputs.items() if isinstance(value, Tensor)}}
    before = {name: value.clone() for name, value in caller_tensors.items()}
    for _ in range(2):
        pipe.combine(rows, **inputs)
        pipe.combine({"a": rows[:, :5], "b": rows[:, 5:]}, **inputs)
    require_all_equal(caller_tensors, before, "`{}` after the steps")
    features = rows[:, None, :].clone()  # the same number of features as in the steps above
    pipe.transform(features, [TaskKey(slot, f"domain {slot}") for slot in range(len(rows))])
    require_equal(features, rows[:, None, :], "the features passed to `transform`")
    if subject.acts_before_rows:
        fresh, batch, unused = subject.pipeline(), small_network.batch(), small_network.batch()
        for _ in range(2):
            subject.encoder_step(fresh, batch)
        for name in ("support_x", "query_x"):
            require_equal(getattr(batch, name), getattr(unused, name), f"`{name}` after the steps")


@check("homogenizers")
def inputs_unchanged(subject: HomogenizerSubject) -> None:
    """No stage writes to its inputs: rows, losses, statistics and features have the same values before and after it.

    This includes the caller's tensors over two steps, features passed through `transform`, and the inputs of the
    attached encoder. Values are compared, so writes through `.data` or NumPy are found.
    """
    pipe = subject.pipeline()
    pipe.debug = True
    _run_all_stages(subject, pipe)


@check("homogenizers")
def no_stage_writes_to_self(subject: HomogenizerSubject) -> None:
    """No stage changes the homogenizer: `update` returns new state, and the pipeline assigns it.

    So a step that raises later changes nothing. All attributes are compared before and after `transform`, `mix`,
    `rows`, `update`, `measured` and `paper_scale`. `measured` must return the same numbers if it is called twice.
    """
    changes: dict[str, None] = {}

    def attributes(homogenizer: Any) -> dict[str, object]:
        return {name: snapshot(value) for name, value in vars(homogenizer).items()}

    def compare(homogenizer: Any, stage: str, call: Callable[..., Any], *arguments: Any) -> Any:
        before = attributes(homogenizer)
        result = call(*arguments)
        changed = changed_names(before, attributes(homogenizer))
        changes.update({f"`{stage}` changes `self.{name}`": None for name in changed})
        if stage == "measured" and snapshot(call(*arguments)) != snapshot(result):
            changes["`measured` returns other numbers in a second call"] = None
        return result

    _run_all_stages(subject, wrap_stages(subject.pipeline(), compare))
    if changes:
        raise CheckFailure(
            f"{', '.join(changes)}: return new state from `update` under names listed in `state_names`; pass values "
            "from `mix` or `rows` to `update` by `StageResult(value, aux=...)`"
        )


@check("homogenizers")
def no_graph_kept(subject: HomogenizerSubject) -> None:
    """Without `create_graph`, neither the direction nor the homogenizer's attributes have a graph.

    This includes the graphs of inputs, such as features in `transform`.
    """
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    losses = torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64, requires_grad=True)
    pipe, before_rows = subject.pipeline(), subject.pipeline()
    if subject.combine(rows, losses=losses, pipe=pipe, steps=2).requires_grad:
        raise CheckFailure("the direction requires grad although create_graph is False")
    subject.encoder_step(before_rows, small_network.batch())
    for homogenizer in (*pipe, *before_rows):
        for path, tensor in find_objects(homogenizer, Tensor):
            if tensor.grad_fn is not None:
                raise CheckFailure(f"`{path}` of {type(homogenizer).__name__} keeps the graph of a step: detach it")


@check("homogenizers")
def global_generators_unchanged(subject: HomogenizerSubject) -> None:
    """The global generators of torch, numpy and Python do not change: random numbers come from `step.generator`."""
    # A seed that no plugin is likely to use.
    if changed := changed_generators(lambda: subject.outputs(subject.pipeline(), steps=3), 271828):
        raise CheckFailure(
            f"it draws from the global generator of {changed}: draw from `step.generator` or from the generator passed "
            "to `begin`; an option `seed` makes draws reproducible"
        )


@check("homogenizers", claim="stochastic")
def stochastic(subject: HomogenizerSubject) -> None:
    """Another seed gives other results within four steps."""
    first, other = subject.pipeline(), subject.pipeline()
    for homogenizer in other:
        homogenizer.seed += 1
    pairs = zip(subject.outputs(first), subject.outputs(other), strict=True)
    if all(torch.equal(one, two) for one, two in pairs):
        raise CheckFailure("two seeds give the same results: draw from `step.generator`")
