"""Checks of state: kept between steps, copied, independent of the order of tasks, unchanged by failed steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from gradhomog.errors import NonfiniteError
from gradhomog.registry.options import option_parameters
from gradhomog.testing.assertions import error_of, require_close, require_equal
from gradhomog.testing.check_results import CheckFailure, NotApplicable, check
from gradhomog.testing.snapshots import find_objects, snapshot
from gradhomog.testing.subjects import STEPS, HomogenizerSubject


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
