"""Checks of state, and of side effects: stages change neither their inputs, the homogenizer nor global generators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradhomog.errors import NonfiniteError
from gradhomog.registry.options import option_parameters
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.step import TaskKey
from gradhomog.testing import small_network
from gradhomog.testing.assertions import error_of, require_all_equal, require_close, require_equal
from gradhomog.testing.check_results import CheckFailure, NotApplicable, check
from gradhomog.testing.snapshots import changed_generators, changed_names, find_objects, snapshot
from gradhomog.testing.subjects import STEPS, HomogenizerSubject

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


@check("homogenizers", claim="stateful")
def stateful(subject: HomogenizerSubject) -> None:
    """`state_names` is not empty: state is carried from step to step."""
    if not subject.stateful:
        raise CheckFailure("`state_names` is empty")


@check("homogenizers")
def state_owns_its_memory(subject: HomogenizerSubject) -> None:
    """State is a copy: later writes to the caller's rows, losses or features do not change it.

    A `state_dict` must not change either when training continues after it was saved or loaded.
    """
    if not subject.stateful:
        raise NotApplicable("it has no state")
    rows = torch.randn(4, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pipe, inputs = subject.pipeline(), subject.step_inputs(rows)
    pipe.combine(rows, **inputs)
    before = snapshot(pipe.state_dict())
    for _, tensor in find_objects([rows, inputs], torch.Tensor):
        tensor.zero_()
    if snapshot(pipe.state_dict()) != before:
        raise CheckFailure("the state changes when the caller's rows, losses or features are overwritten: clone them")

    first = subject.pipeline()
    subject.outputs(first)
    state = first.state_dict()
    expected = subject.outputs(first, start=STEPS)
    for when in ("saved, further training of the original", "loaded, further training"):
        fresh = subject.pipeline()
        fresh.load_state_dict(state)
        for one, two in zip(subject.outputs(fresh, start=STEPS), expected, strict=True):
            require_equal(
                one, two, f"after the state was {when} writes to it; return new values from `update`. Outputs"
            )


@check("homogenizers")
def state_by_name(subject: HomogenizerSubject) -> None:
    """State belongs to the names of tasks: their order and the absence of others have no effect on it.

    Checked over four steps of tasks named a, a, b, c with other rows and losses each, of which one pipeline receives
    the tasks in this order, and another in orders that change; b is absent from the third step. The directions must be
    the same, and the states after the first step, in which the two tasks named a are swapped. An option `key` is set to
    "domain". The check is not applicable if the method does not claim `permutation_equivariant` and its direction
    depends on the order of the tasks in the first step.
    """
    if not subject.stateful:
        raise NotApplicable("it has no state")
    options: dict[str, Any] = {"key": "domain"} if "key" in option_parameters(subject.spec) else {}
    fixed_order, other_orders = subject.pipeline(**options), subject.pipeline(**options)
    for number, order in enumerate(([1, 0, 2, 3], [3, 1, 0, 2], [3, 0, 1], [2, 3, 1, 0])):
        generator = torch.Generator().manual_seed(number)
        rows = torch.randn(4, 8, generator=generator, dtype=torch.float64)
        losses = torch.rand(4, generator=generator, dtype=torch.float64) + 0.5
        expected, found = [
            subject.combine(rows[index], losses=losses[index], order=index, domains=["a", "a", "b", "c"], pipe=pipe)
            for pipe, index in ((fixed_order, torch.tensor(sorted(order))), (other_orders, torch.tensor(order)))
        ]
        when = f"after {number + 1} steps in which the order of tasks named a, a, b, c changed"
        stateless = number == 0 or "stochastic" in subject.claims
        may_depend_on_order = stateless and "permutation_equivariant" not in subject.claims
        if may_depend_on_order and not torch.allclose(found, expected, rtol=1e-7):
            raise NotApplicable("its direction depends on the order of the tasks")
        require_close(found, expected, f"the direction {when}", rtol=1e-7, atol=1e-9, jacobian=rows, losses=losses)
        if number == 0:
            _require_close_states(other_orders.state_dict(), fixed_order.state_dict(), when)


def _require_close_states(found: Any, expected: Any, when: str, path: str = "") -> None:
    if isinstance(expected, dict):
        if not isinstance(found, dict) or set(found) != set(expected):
            raise CheckFailure(f"the keys of the state{path} {when}: {found}; expected {expected}")
        for name, value in expected.items():
            _require_close_states(found[name], value, when, f"{path}[{name!r}]")
    elif isinstance(expected, (list, tuple)):
        for index, (one, two) in enumerate(zip(found, expected, strict=True)):
            _require_close_states(one, two, when, f"{path}[{index}]")
    elif isinstance(expected, (float, torch.Tensor)):
        one, two = (torch.as_tensor(value, dtype=torch.float64) for value in (found, expected))
        require_close(one, two, f"the state{path} {when}", rtol=1e-7, atol=1e-9)
    elif found != expected:
        raise CheckFailure(f"the state{path} {when}: {found!r}; expected {expected!r}")


@check("homogenizers", claim="momentum")
def momentum(subject: HomogenizerSubject) -> None:
    """The direction depends on rows of earlier steps: after rows that are all g, rows that are all h do not give h."""
    first, second = torch.eye(2, 5, dtype=torch.float64)
    pipe = subject.pipeline()
    subject.combine(first.repeat(3, 1), pipe=pipe)
    found = subject.combine(second.repeat(3, 1), pipe=pipe)
    if torch.allclose(found, second, rtol=1e-9, atol=1e-12):
        raise CheckFailure(
            "the direction for identical rows is that row, so it does not depend on earlier steps, as the trait "
            "`momentum` claims",
            direction=found,
        )


@check("homogenizers")
def nonfinite_policy(subject: HomogenizerSubject) -> None:
    """A row with NaN or infinity causes an error and changes no state; with `nonfinite="drop"` other tasks continue.

    The check covers the first step, and a step between steps in which all rows are finite. A homogenizer that chooses
    tasks cannot be combined with `"drop"`; for it, only the error is checked.
    """
    rows = torch.randn(4, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for value in (torch.nan, torch.inf):
        broken = rows.clone()
        broken[2, 3] = value
        pipe, reference = subject.pipeline(), subject.pipeline()
        for each in (pipe, reference):
            subject.combine(rows, pipe=each, steps=2)
        if error_of(partial(subject.combine, broken, pipe=pipe), NonfiniteError) is None:
            raise CheckFailure(f"a row with {value} gives a direction; expected a NonfiniteError", jacobian=broken)
        one, two = (subject.combine(rows, pipe=after, steps=2) for after in (pipe, reference))
        require_equal(one, two, f"the direction after a step that raised because of {value}: the state has changed")
        if pipe.requirements.choosing:
            continue  # such a pipeline requires nonfinite="raise"
        dropping = subject.pipeline(nonfinite="drop")
        for jacobian in (broken, rows, broken, rows):
            if not bool(torch.isfinite(subject.combine(jacobian, pipe=dropping)).all()):
                raise CheckFailure(f"with nonfinite='drop' the direction of the other tasks is not finite ({value})")
