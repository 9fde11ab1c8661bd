"""Checks of state: kept, replaced as a whole, independent of the order of tasks of one key, and safe from bad steps."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch

from gradhomog.errors import NonfiniteError
from gradhomog.step import Step
from gradhomog.testing.checking import CheckFailure, NotApplicable, check
from gradhomog.testing.comparing import agree, same
from gradhomog.testing.homogenizers.subject import STEPS, HomogenizerSubject
from gradhomog.testing.snapshots import find_objects, snapshot


@check("homogenizers", claim="stateful")
def stateful(subject: HomogenizerSubject) -> None:
    """It carries state from step to step: `state_names` is not empty."""
    if not subject.stateful:
        raise CheckFailure("`state_names` is empty")


@check("homogenizers")
def state_owns_its_memory(subject: HomogenizerSubject) -> None:
    """State is a copy: writing to the caller's rows, losses or features afterwards does not change it.

    Nor does a `state_dict` change when training continues, neither where it was saved nor where it was loaded.
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
    for when in ("saved, training the original", "loaded, training the one that loaded it"):
        fresh = subject.pipeline()
        fresh.load_state_dict(state)
        for one, two in zip(subject.outputs(fresh, start=STEPS), expected, strict=True):
            same(one, two, f"after the state was {when} writes to it; return new values from `update`. Outputs")


@check("homogenizers")
def order_within_a_key(subject: HomogenizerSubject) -> None:
    """Swapping two tasks of one domain changes nothing: neither the state by domain nor, later, a direction.

    Over three steps of domains a, a, b with other rows and losses each; then one step of domains b, a. An option `key`
    is set to "domain". The check does not apply to a method without the claim `permutation_equivariant` whose direction
    depends on the order of the tasks in the first step.
    """
    if not subject.stateful:
        raise NotApplicable("it has no state")
    options: dict[str, Any] = {"key": "domain"} if subject.has_option("key") else {}
    keys: set[str] = set()
    original = Step.by

    def by(step: Step, key: str) -> list[str]:
        keys.add(key)
        return original(step, key)

    plain, swapped = subject.pipeline(**options), subject.pipeline(**options)
    with mock.patch.object(Step, "by", by):
        for number in range(3):
            generator = torch.Generator().manual_seed(number)
            rows = torch.randn(3, 8, generator=generator, dtype=torch.float64)
            losses = torch.rand(3, generator=generator, dtype=torch.float64) + 0.5
            found = [
                subject.vector(rows[order], losses=losses[order], order=order, domains=["a", "a", "b"], pipe=pipe)
                for pipe, order in ((plain, torch.tensor([0, 1, 2])), (swapped, torch.tensor([1, 0, 2])))
            ]
            if "slot" in keys:
                raise NotApplicable("its state is by slot: no two tasks have one key")
            when = f"after {number + 1} steps in which the two tasks of domain a are swapped"
            stateless = number == 0 or "stochastic" in subject.claims
            ordered = stateless and "permutation_equivariant" not in subject.claims
            if ordered and not torch.allclose(found[1], found[0], rtol=1e-7):
                raise NotApplicable("its direction depends on the order of the tasks")
            agree(found[1], found[0], f"the direction {when}", rtol=1e-7, atol=1e-9, jacobian=rows, losses=losses)
            _states_agree(swapped.state_dict(), plain.state_dict(), when)
        if "stochastic" not in subject.claims:
            rows = torch.randn(2, 8, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
            one, two = (subject.vector(rows, domains=["b", "a"], pipe=pipe) for pipe in (swapped, plain))
            agree(one, two, "a later direction, of domains b and a", rtol=1e-7, atol=1e-9)


def _states_agree(found: Any, expected: Any, when: str, path: str = "") -> None:
    if isinstance(expected, dict):
        if not isinstance(found, dict) or set(found) != set(expected):
            raise CheckFailure(f"the keys of the state{path} {when}: {found}; expected {expected}")
        for name, value in expected.items():
            _states_agree(found[name], value, when, f"{path}[{name!r}]")
    elif isinstance(expected, (list, tuple)):
        for index, (one, two) in enumerate(zip(found, expected, strict=True)):
            _states_agree(one, two, when, f"{path}[{index}]")
    elif isinstance(expected, (float, torch.Tensor)):
        one, two = (torch.as_tensor(value, dtype=torch.float64) for value in (found, expected))
        agree(one, two, f"the state{path} {when}", rtol=1e-7, atol=1e-9)
    elif found != expected:
        raise CheckFailure(f"the state{path} {when}: {found!r}; expected {expected!r}")


@check("homogenizers", claim="momentum")
def momentum(subject: HomogenizerSubject) -> None:
    """Rows of an earlier step count in the next: after rows that are all g, rows that are all h do not give h."""
    first, second = torch.eye(2, 5, dtype=torch.float64)
    pipe = subject.pipeline()
    subject.combine(first.repeat(3, 1), pipe=pipe)
    found = subject.vector(second.repeat(3, 1), pipe=pipe)
    if torch.allclose(found, second, rtol=1e-9, atol=1e-12):
        raise CheckFailure("identical rows give that row, independently of the step before", direction=found)


@check("homogenizers")
def nonfinite_policy(subject: HomogenizerSubject) -> None:
    """A task with NaN or infinity raises and leaves all state unchanged; with `nonfinite="drop"` the others continue.

    In the first step, and between steps of all tasks.
    """
    rows = torch.randn(4, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for value in (torch.nan, torch.inf):
        broken = rows.clone()
        broken[2, 3] = value
        pipe, undisturbed = subject.pipeline(), subject.pipeline()
        for each in (pipe, undisturbed):
            subject.combine(rows, pipe=each, steps=2)
        try:
            subject.combine(broken, pipe=pipe)
        except NonfiniteError:
            pass
        else:
            raise CheckFailure(f"a row with {value} leads to a direction", jacobian=broken)
        one, two = (subject.vector(rows, pipe=after, steps=2) for after in (pipe, undisturbed))
        same(one, two, f"a direction after a step was refused because of {value}: state has changed")
        dropping = subject.pipeline(nonfinite="drop")
        for given in (broken, rows, broken, rows):
            if not bool(torch.isfinite(subject.vector(given, pipe=dropping)).all()):
                raise CheckFailure(f"with nonfinite='drop' the direction of the other tasks is not finite ({value})")
