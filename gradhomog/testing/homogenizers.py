"""Checks of homogenizers: directions, state, side effects, stages in the encoder, derivatives."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradhomog.errors import NonfiniteError, OptionError
from gradhomog.learners.learner import Learner
from gradhomog.learners.tasks import TaskBatch
from gradhomog.registry.options import option_parameters
from gradhomog.rows import Jacobian
from gradhomog.step.pipelines import Pipeline
from gradhomog.step.step import StageResult, TaskKey
from gradhomog.testing import small_network
from gradhomog.testing.assertions import (
    central_difference,
    derivatives_close,
    error_of,
    require_all_equal,
    require_close,
    require_derivative,
    require_equal,
    require_exact_rows,
)
from gradhomog.testing.check_results import CheckFailure, NotApplicable, check, full_or_fast
from gradhomog.testing.property_search import for_all, jacobians, values_of
from gradhomog.testing.small_network import network, task
from gradhomog.testing.snapshots import (
    changed_generators,
    changed_names,
    find_objects,
    module_structure,
    module_values,
    snapshot,
)
from gradhomog.testing.subjects import STEPS, HomogenizerSubject, LearnerSubject

EPSILON = (
    "an absolute epsilon or threshold, which is negligible for long rows only; make it relative to the norms of the "
    "rows, or choose by torch.where for rows of norm zero"
)


def random_rows(tasks: int, params: int, seed: int = 0) -> Tensor:
    return torch.randn(tasks, params, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def largest_norm(rows: Tensor) -> float:
    return float(rows.norm(dim=1).max())


@check("homogenizers")
def finite_for_finite_rows(subject: HomogenizerSubject) -> None:
    """Every finite matrix of rows has a finite direction of matching shape and dtype, over two steps.

    Includes zero, duplicate and opposite rows, a single task, and norms that differ by six orders of magnitude, in
    float64 and float32.
    """

    @for_all(jacobian=jacobians(), dtype=st.sampled_from([torch.float64, torch.float32]))
    def _(jacobian: Tensor, dtype: torch.dtype) -> None:
        direction = subject.combine(jacobian.to(dtype), steps=2)
        if not isinstance(direction, Tensor) or direction.shape != jacobian.shape[1:] or direction.dtype != dtype:
            description = f"{tuple(direction.shape)} {direction.dtype}" if isinstance(direction, Tensor) else direction
            raise CheckFailure(f"the direction is {description}; expected {tuple(jacobian.shape[1:])} {dtype}")
        if not bool(torch.isfinite(direction).all()):
            raise CheckFailure("the direction is not finite", direction=direction)


@check("homogenizers")
def half_precision(subject: HomogenizerSubject) -> None:
    """Rows in float16 and bfloat16 give the direction of the same rows in float64, up to their precision.

    Entries have a size of about 1 and of about 100. Sums of squares of the latter overflow in float16.
    """
    for dtype, size in itertools.product((torch.float16, torch.bfloat16), (1.0, 100.0)):
        rows = (size * random_rows(4, 33, seed=1)).to(dtype)
        expected = subject.combine(rows.double()).to(dtype)
        what = f"{dtype}, entries of about {size:g}"
        require_close(subject.combine(rows), expected, what, rtol=1e-2, atol=1e-2 * size)


def in_tensors(rows: Tensor) -> dict[str, Tensor]:
    """Divide rows `[tasks, 18]` into three tensors."""
    return {"weight": rows[:, :12].reshape(len(rows), 3, 4), "scalar": rows[:, 12], "bias": rows[:, 13:]}


@check("homogenizers")
def dict_rows(subject: HomogenizerSubject) -> None:
    """Rows as a dict of tensors `[tasks, *shape]` give the direction of the same rows as one matrix.

    For a homogenizer that claims `per_tensor`, only names and shapes are compared.
    """
    rows = random_rows(4, 18, seed=2)
    parts = in_tensors(rows)
    direction = subject.combine(parts, steps=2)
    shapes = {name: value.shape[1:] for name, value in parts.items()}
    if not isinstance(direction, dict) or {name: value.shape for name, value in direction.items()} != shapes:
        raise CheckFailure(
            f"the direction of a dict of rows must be a dict of the same names and shapes; got {direction}"
        )
    if "per_tensor" in subject.claims:
        return
    found = torch.cat([direction[name].reshape(-1) for name in parts])
    require_close(found, subject.combine(rows, steps=2), "a dict of rows", rtol=1e-9, atol=1e-12, jacobian=rows)


@check("homogenizers")
def devices(subject: HomogenizerSubject) -> None:
    """On an accelerator, the direction is on this device and close to the direction on the CPU."""
    if not torch.accelerator.is_available():
        raise NotApplicable("this machine has no device other than the CPU")
    device, rows = torch.accelerator.current_accelerator(), random_rows(4, 33, seed=3).float()
    found = subject.combine(rows.to(device), steps=2)
    if not isinstance(found, Tensor) or device is None or found.device.type != device.type:
        raise CheckFailure(f"the direction of rows on {device} is not on {device}")
    require_close(found.cpu(), subject.combine(rows, steps=2), str(device), rtol=1e-4, atol=1e-5)


@check("homogenizers")
def options_work(subject: HomogenizerSubject) -> None:
    """Every value that an option's annotation allows gives a finite direction.

    Numbers, booleans and choices are drawn, for one option at a time; numbers from 0.001 to 1000, integers up to 20.
    For invalid combinations an `OptionError` that names an option is allowed.
    """
    options = option_parameters(subject.spec).items()
    sampled = {name: strategy for name, one in options if (strategy := values_of(one.annotation)) is not None}
    if not sampled:
        raise NotApplicable("no option is a number, a boolean or a choice")
    rows = random_rows(3, 7)

    @for_all(option=st.sampled_from(sorted(sampled)).flatmap(lambda name: st.tuples(st.just(name), sampled[name])))
    def _(option: tuple[str, Any]) -> None:
        name, value = option
        try:
            direction = subject.combine(rows, pipe=subject.pipeline(**{name: value}), steps=2)
        except OptionError as error:
            if not any(other in str(error) for other in option_parameters(subject.spec)):
                raise CheckFailure(f"the error for option `{name}`={value!r} names no option: {error}") from error
            return
        except Exception as error:
            raise CheckFailure(
                f"option `{name}`={value!r} is allowed by its annotation, but raises {type(error).__name__}: {error}"
            ) from error
        if not bool(direction.isfinite().all()):
            raise CheckFailure(
                f"option `{name}`={value!r} is allowed by its annotation, but the direction is not finite"
            )


# -- identical tasks -------------------------------------------------------------------------------------------------


@check("homogenizers")
def identical_rows(subject: HomogenizerSubject) -> None:
    """N identical rows give that row as direction, over two steps, for N from 1 to 6: all methods have one scale."""

    @for_all(jacobian=jacobians(tasks=1, params=(1, 9)), tasks=st.integers(1, 6))
    def _(jacobian: Tensor, tasks: int) -> None:
        rows = jacobian.repeat(tasks, 1)
        direction, size = subject.combine(rows, steps=2), float(jacobian.abs().max())

        def cause() -> str:
            factor = float(torch.nan_to_num(direction / jacobian[0]).abs().max())
            longer = 2.0**40 * rows
            if torch.allclose(subject.combine(longer, steps=2), longer[0], rtol=1e-9):
                return EPSILON
            if torch.allclose(direction, factor * jacobian[0], rtol=1e-6, atol=1e-9 * size):
                return f"the weights sum to {tasks * factor:.4g} instead of {tasks}, the number of tasks"
            return ""

        require_close(direction, jacobian[0], f"{tasks} identical rows", rtol=1e-9, atol=1e-12 * size, cause=cause)


@check("homogenizers")
def zero_rows_give_zero_direction(subject: HomogenizerSubject) -> None:
    """If all rows are zero, the direction is exactly zero."""
    for tasks in (1, 3):
        direction = subject.combine(torch.zeros(tasks, 4), steps=2)
        if not isinstance(direction, Tensor) or bool((direction != 0).any()):
            raise CheckFailure(
                "zero rows give a direction that is not zero", jacobian=torch.zeros(tasks, 4), direction=direction
            )


@check("homogenizers")
def identical_tasks(subject: HomogenizerSubject) -> None:
    """On N identical tasks, three meta-steps of the installed learners equal those of the plain learner.

    Features must be transformed only if tasks differ. A homogenizer that attaches hooks to the encoder is compared only
    while its rows of identical tasks equal the plain learner's: dropout of activations, for example, always changes
    them. For a homogenizer that claims `momentum`, only the first step is compared.
    """
    learners = subject.learners()
    if not sum(_identical_steps(subject, learner) for learner in learners[: full_or_fast(len(learners), 2)]):
        raise NotApplicable(
            "even for identical tasks its rows differ from the rows of the plain learner, so steps cannot be compared"
        )


def _identical_steps(subject: HomogenizerSubject, learner: LearnerSubject) -> int:
    """Return the number of steps on identical tasks whose parameters were compared; raise if they differ."""
    plain, homogenized = (learner.make_for(*network(), pipe) for pipe in (None, subject.pipeline()))
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (plain, homogenized)]
    steps = 1 if "momentum" in subject.claims else 3
    for step in range(steps):
        batch = TaskBatch.stack([small_network.task(step, f"domain {index}") for index in range(3)])
        if subject.attaches and not _rows_are_close(plain, homogenized, batch):
            return step
        for one, optimizer in zip((plain, homogenized), optimizers, strict=True):
            one.step(batch, optimizer)
        for parameter, value in plain.named_parameters().items():
            found = homogenized.named_parameters()[parameter].detach()
            what = f"`{parameter}` of {learner.name} after {step + 1} steps on identical tasks"
            require_close(found, value.detach(), what, rtol=1e-7, atol=1e-10)
    return steps


def _rows_are_close(plain: Learner, homogenized: Learner, batch: TaskBatch) -> bool:
    state = homogenized.homogenizers.state_dict()
    expected, found = plain.rows(batch).jacobian, homogenized.rows(batch).jacobian
    homogenized.homogenizers.load_state_dict(state)
    return all(torch.allclose(found[name], expected[name], rtol=1e-9, atol=1e-12) for name in expected)


# -- claimed traits --------------------------------------------------------------------------------------------------

# More parameters than tasks: otherwise several sets of weights may be optimal, and rounding selects one of them.
_FREE = jacobians(tasks=(2, 6), params=(7, 12), spread=3, zero=False, duplicate=False, opposite=False)


@check("homogenizers", claim="permutation_equivariant")
def permutation_equivariant(subject: HomogenizerSubject) -> None:
    """A permutation of the tasks (rows, losses, domains and features) does not change the direction.

    Checked in the second of two steps, because state by slot violates this: it belongs to the slot, not to the task.
    """

    @for_all(jacobian=_FREE, permutation=st.permutations(range(6)))
    def _(jacobian: Tensor, permutation: list[int]) -> None:
        order = torch.tensor([slot for slot in permutation if slot < len(jacobian)])
        pipe, other = subject.pipeline(), subject.pipeline()
        for each in (pipe, other):
            subject.combine(jacobian, pipe=each)
        expected = subject.combine(jacobian, pipe=pipe)
        found = subject.combine(jacobian[order], pipe=other, order=order)
        require_close(
            found, expected, f"rows in the order {order.tolist()}", rtol=1e-6, atol=1e-9 * largest_norm(jacobian)
        )


_EXPONENTS = st.integers(-59, 59) | st.sampled_from([-59, 59])  # the smallest epsilon has an effect only at the ends


@check("homogenizers", claim="scale_equivariant")
def scale_equivariant(subject: HomogenizerSubject) -> None:
    """Multiplying float32 rows by a factor from 1e-18 to 1e18 multiplies the direction by it, over three steps."""

    @for_all(jacobian=jacobians(tasks=(1, 5), params=(6, 12), spread=2, opposite=False), exponent=_EXPONENTS)
    def _(jacobian: Tensor, exponent: int) -> None:
        rows, factor = jacobian.float(), 2.0**exponent
        expected = subject.combine(rows, steps=3)
        found = subject.combine(rows * factor, steps=3)
        require_close(
            found / factor, expected, f"rows times 2^{exponent}", rtol=1e-4, atol=1e-4 * largest_norm(jacobian),
            cause=lambda: EPSILON if exponent < 0 else "",
        )  # fmt: skip


@check("homogenizers", claim="loss_scale_invariant")
def loss_scale_invariant(subject: HomogenizerSubject) -> None:
    """Multiplying all losses by a factor from 1e-12 to 1e12 does not change the direction, over three steps.

    Each step has other losses. Small factors reveal an absolute epsilon added to losses, large ones a threshold.
    """
    if "losses" not in subject.spec.needs:
        raise NotApplicable("it does not read losses")
    rows = random_rows(3, 8)
    losses = torch.tensor([[0.5, 1.0, 2.0], [0.4, 1.1, 0.9], [0.6, 0.3, 0.8]], dtype=torch.float64)

    def direction(factor: float) -> Any:
        pipe = subject.pipeline()
        return [subject.combine(rows, losses=factor * row, pipe=pipe) for row in losses][-1]

    expected = direction(1.0)
    for factor in (1e-12, 1e-6, 1e6, 1e12):
        what = f"the direction with losses times {factor:g}"
        require_close(
            direction(factor), expected, what, rtol=1e-6, atol=1e-9 * largest_norm(rows), losses=factor * losses
        )


@check("homogenizers", claim="rotation_equivariant")
def rotation_equivariant(subject: HomogenizerSubject) -> None:
    """A rotation of parameter space rotates the direction: it depends on inner products of rows, not on coordinates."""

    @for_all(jacobian=_FREE, seed=st.integers(0, 100))
    def _(jacobian: Tensor, seed: int) -> None:
        rotation = torch.linalg.qr(random_rows(jacobian.shape[1], jacobian.shape[1], seed))[0]
        expected = subject.combine(jacobian) @ rotation
        found = subject.combine(jacobian @ rotation)
        require_close(found, expected, "rotated rows", rtol=1e-6, atol=1e-8 * largest_norm(jacobian), rotation=rotation)


@check("homogenizers", claim="per_tensor")
def per_tensor(subject: HomogenizerSubject) -> None:
    """The direction in each tensor of parameters is that of the rows in this tensor alone, over two steps."""
    parts = in_tensors(random_rows(4, 18, seed=4))
    together = subject.combine(parts, steps=2)
    for name, rows in parts.items():
        alone = subject.combine({name: rows}, steps=2)
        require_close(
            together[name], alone[name], f"the direction in the tensor `{name}`", rtol=1e-9, atol=1e-12, jacobian=rows
        )


# Largest conflict with nearly dependent rows, relative to ‖g_i‖ · mean_j ‖g_j‖. Weights that cancel in such rows lose
# up to the square root of rounding; narrow dtypes also round the direction.
_CONFLICTS = {torch.float64: 1e-7, torch.float32: 5e-4, torch.float16: 1e-3, torch.bfloat16: 4e-3}


@check("homogenizers", claim="non_conflicting")
def non_conflicting(subject: HomogenizerSubject) -> None:
    """The direction has no negative inner product with any row, up to rounding.

    Rows that are nearly opposite to another row, or to the sum of two, are passed in every floating dtype: weights from
    the inverse of their Gramian consist of rounding.
    """

    @for_all(jacobian=jacobians(), examples=80)
    def _(jacobian: Tensor) -> None:
        norms = jacobian.norm(dim=1)
        rounding = 1e-9 * norms * norms[norms > 0].min() if bool(norms.any()) else norms
        _require_no_conflict(jacobian, subject.combine(jacobian), rounding)

    @for_all(
        tasks=st.integers(3, 8), params=st.sampled_from([5, 40, 1000]), seed=st.integers(0, 1000),
        apart=st.sampled_from([0.0, 1e-6, 1e-4, 1e-2]), summed=st.integers(1, 2),
        dtype=st.sampled_from(list(_CONFLICTS)), examples=120,
    )  # fmt: skip
    def _(tasks: int, params: int, seed: int, apart: float, summed: int, dtype: torch.dtype) -> None:
        jacobian = random_rows(tasks, params, seed)
        jacobian[-1] = apart * jacobian[-1] - jacobian[:summed].sum(0)
        jacobian = jacobian.to(dtype)
        norms = jacobian.double().norm(dim=1)
        _require_no_conflict(jacobian, subject.combine(jacobian), _CONFLICTS[dtype] * norms * norms.mean())


def _require_no_conflict(jacobian: Tensor, direction: Tensor, rounding: Tensor) -> None:
    inner = jacobian.double() @ direction.double()
    if bool((inner < -rounding).any()):
        raise CheckFailure("the direction conflicts with a row", direction=direction, inner_products=inner)


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
    rows = random_rows(4, 12)
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
    rows = random_rows(3, 8).requires_grad_()
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
    rows = random_rows(4, 12)
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
    rows = random_rows(4, 12)
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


SIZE = 5  # an odd number of features: −1 is a rotation in even dimensions only


@check("homogenizers", claim="orthogonal")
def orthogonal(subject: HomogenizerSubject) -> None:
    """`transform` is linear, preserves inner products and has determinant 1, for every task, after 2000 updates."""
    if not subject.transforms:
        raise NotApplicable("it does not override `transform`")
    pipe, tasks, updates = subject.pipeline(), 3, full_or_fast(2000, 100)
    keys = [TaskKey(slot, f"domain {slot}") for slot in range(tasks)]
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    for number in range(updates):
        inputs = subject.step_inputs(torch.ones(tasks, 2, dtype=torch.float64))
        inputs["features"] = pipe.transform(normal(tasks, 4, SIZE), keys)
        inputs["feature_grads"] = [normal(tasks, 4, SIZE) for _ in inputs["features"]]
        inputs["targets"] = torch.arange(4).repeat(tasks, 1)
        pipe.combine(normal(tasks, 8), **inputs)
        if number in (0, 9, updates - 1):
            for dtype, rounding in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
                _require_rotation(pipe, keys, dtype, rounding, f"after {number + 1} updates, {dtype}")


def _require_rotation(pipe: Pipeline, keys: list[TaskKey], dtype: torch.dtype, rounding: float, when: str) -> None:
    basis = torch.eye(SIZE, dtype=dtype).repeat(len(keys), 1, 1)
    matrices = pipe.transform(basis, keys)[-1].detach()
    points = torch.linspace(-1, 2, basis.numel(), dtype=dtype).reshape(basis.shape)
    if not torch.allclose(pipe.transform(points, keys)[-1].detach(), points @ matrices, atol=20 * rounding):
        raise CheckFailure(f"{when}: `transform` is not linear in the features")
    for slot, matrix in enumerate(matrices.double()):
        off = float((matrix @ matrix.T - torch.eye(SIZE, dtype=torch.float64)).abs().max())
        if off > rounding:
            raise CheckFailure(f"{when}: RᵀR of task {slot} differs from the identity by {off:.2g}", matrix=matrix)
        if float(torch.linalg.det(matrix)) < 0:
            raise CheckFailure(f"{when}: the matrix of task {slot} has determinant −1: a reflection", matrix=matrix)


def _require_attach(subject: HomogenizerSubject) -> None:
    if not subject.attaches:
        raise NotApplicable("it does not override `attach`")


@check("homogenizers")
def constant_between_begins(subject: HomogenizerSubject) -> None:
    """Between two calls of `begin`, the attached encoder gives equal outputs for equal inputs: draws are kept.

    Checked after two steps, because learned state may determine how much is drawn.
    """
    _require_attach(subject)
    pipe = subject.pipeline()
    subject.outputs(pipe, steps=2)
    encoder, _ = network()
    inputs = task(0).support_x
    with pipe.attached(encoder):
        for part in ("support", "query"):
            pipe.begin(TaskKey(0, "domain 0"), part)
            first = encoder(inputs)
            for _ in range(4):
                require_equal(encoder(inputs), first, f"the encoder's output in a second run on {part} inputs")


@check("homogenizers")
def detached_completely(subject: HomogenizerSubject) -> None:
    """After training the encoder has its original hooks, parameters, buffers, `forward` and values.

    This must also hold if `attach` raises while it registers its first, second, … hook.
    """
    _require_attach(subject)
    encoder, _ = network()
    before, values = module_structure(encoder), module_values(encoder)
    with subject.pipeline().attached(encoder):
        pass
    _require_unchanged(encoder, before, values, "after the handles were removed")
    for failing in range(1, 9):
        encoder, _ = network()
        before, values, pipe = module_structure(encoder), module_values(encoder), subject.pipeline()
        with _registration_fails(failing) as calls, contextlib.suppress(Exception), pipe.attached(encoder):
            pass
        if calls[0] < failing:
            return
        _require_unchanged(encoder, before, values, f"after `attach` raised at hook {failing}")


@contextlib.contextmanager
def _registration_fails(at: int) -> Iterator[list[int]]:
    """Make the `at`-th registration of a hook raise, before the hook is stored."""
    calls, create = [0], RemovableHandle.__init__

    def fail(handle: RemovableHandle, *arguments: Any, **options: Any) -> None:
        calls[0] += 1
        if calls[0] == at:
            raise RuntimeError("deliberate error at the registration of a hook")
        create(handle, *arguments, **options)

    with mock.patch.object(RemovableHandle, "__init__", fail):
        yield calls


def _require_structure(encoder: nn.Module, before: list[object], when: str) -> None:
    if module_structure(encoder) != before:
        raise CheckFailure(f"{when}, the encoder has changed: hooks, parameters or `forward` are left")


def _require_unchanged(encoder: nn.Module, before: list[object], values: dict[str, Tensor], when: str) -> None:
    _require_structure(encoder, before, when)
    require_all_equal(module_values(encoder), values, f"the encoder's `{{}}` {when}")


@check("homogenizers")
def removed_at_meta_test(subject: HomogenizerSubject) -> None:
    """After training, predictions are those of a learner without homogenizers, and nothing is left on the encoder.

    Checked with the installed learners: hooks, parameters, buffers and modes must be the original ones, also after a
    task that fails. Values of parameters and buffers must not change without a step.
    """
    learners = subject.learners()
    for plugin in learners[: full_or_fast(len(learners), 2)]:
        name, learner = plugin.name, plugin.make_for(*network(), subject.pipeline())
        before, values = module_structure(learner.encoder), module_values(learner.encoder)
        learner.rows(small_network.batch(seed=2))
        what = f"the encoder's `{{}}` after rows of {name}, without a step"
        require_all_equal(module_values(learner.encoder), values, what)
        outer = torch.optim.SGD(learner.parameters(), lr=0.05)
        for step in range(2):
            learner.step(small_network.batch(seed=step), outer)
        _require_structure(learner.encoder, before, f"after a step of {name}")
        bare = plugin.make_for(*network())
        bare.load_state_dict({**learner.state_dict(), "homogenizers": bare.homogenizers.state_dict()})
        query = task(77)
        found, expected = (one.predict(query.support_x, query.support_y, query.query_x) for one in (learner, bare))
        require_equal(found, expected, f"predictions of {name} after meta-training")
        values = module_values(learner.encoder)
        handle = learner.head.register_forward_hook(mock.Mock(side_effect=RuntimeError("deliberate error in the head")))
        with contextlib.suppress(Exception):
            learner.rows(small_network.batch())
        handle.remove()
        _require_unchanged(learner.encoder, before, values, f"after a task of {name} failed")


@check("homogenizers")
def rows_are_derivatives(subject: HomogenizerSubject) -> None:
    """While `attach` and `transform` are active, rows are the derivatives of the losses.

    Rows of learners with the trait `exact_rows` are compared with finite differences of their losses. Random draws are
    constants in these derivatives. They must be the same in every run of a row: a function of seed and step.
    """
    if not subject.acts_before_rows:
        raise NotApplicable("it overrides neither `attach` nor `transform`")
    exact = [plugin for plugin in subject.installed_learners if "exact_rows" in plugin.claims]
    if not exact:
        raise NotApplicable("no installed learner claims the trait `exact_rows`")
    key, query = TaskKey(0, "domain 0"), small_network.batch(seed=5, tasks=1)[0]
    for plugin in exact[: full_or_fast(len(exact), 1)]:
        pipe = subject.pipeline()
        subject.outputs(pipe, 3)  # a rotation starts as the identity
        learner = plugin.make_for(*network(), pipe)
        with learner.mode(training=True), pipe.attached(learner.encoder):
            compute = partial(learner.task_row, query, key)
            rows = {name: None if row is None else row[None] for name, row in compute().gradients.items()}
            require_exact_rows(learner, rows, lambda: compute().loss[None], f" with {plugin.name}", "loss")  # noqa: B023


Inputs = dict[str, Tensor]
"""Tensors by name: `rows` and `losses`."""

CUSTOM_BACKWARD = "a custom backward, or torch.autograd.grad without create_graph=True, detaches the first derivative"


@check("homogenizers", claim="differentiable")
def differentiable(subject: HomogenizerSubject) -> None:
    """The direction is twice differentiable w.r.t. rows and losses, compared with central differences in float64.

    The check compares derivatives in the first step of two tasks and in the second step of four, along random
    directions in rows and losses, like `torch.autograd.gradcheck` and `gradgradcheck` in their fast mode. If a row is
    zero, no derivative may be NaN.
    """
    for tasks, earlier in ((2, 0), (4, 1)):
        generator = torch.Generator().manual_seed(7 * tasks)
        rows = torch.randn(tasks, 6, generator=generator, dtype=torch.float64)
        rows[1] = 0.6 * rows[1] - 0.8 * rows[0]  # many methods change nothing, and detach nothing, without conflict
        inputs = {"rows": rows, "losses": torch.rand(tasks, generator=generator, dtype=torch.float64).add(0.5)}
        probe = torch.randn(6, generator=generator, dtype=torch.float64)
        along = {
            name: torch.randn(value.shape, generator=generator, dtype=torch.float64) for name, value in inputs.items()
        }

        def value(at: Inputs, earlier: int = earlier, probe: Tensor = probe) -> Tensor:
            # A new pipeline for each call, because random numbers and state must be those of the same step.
            direction: Tensor = _differentiable(subject, at["rows"], at["losses"], earlier)
            return direction @ probe

        for name in inputs:
            found, expected = _derivatives(value, inputs, {name: along[name]})
            require_derivative(
                found, expected,
                f"the derivative of the direction w.r.t. the {name} is wrong {_where(tasks, earlier)}: along a random "
                "direction it is", scale=1.0,
                cause=partial(_likely_cause, subject, inputs, name, expected, earlier),
            )  # fmt: skip
        _require_second_order(value, inputs, along, tasks, earlier)
        _require_finite_derivatives_at_zero(value, inputs)


def _derivatives(value: Callable[[Inputs], Tensor], inputs: Inputs, along: Inputs) -> tuple[float, float]:
    """Return the derivative along a direction in some of the inputs, by autograd and by central differences."""
    variables = {name: _leaf(inputs[name]) for name in along}
    gradients = _gradients(value({**inputs, **variables}), list(variables.values()))
    found = sum(float((g * a).sum()) for g, a in zip(gradients, along.values(), strict=True) if g is not None)

    def shifted(step: float) -> Tensor:
        return value({**inputs, **{name: _leaf(inputs[name] + step * a) for name, a in along.items()}})

    return found, float(central_difference(shifted))


def _gradients(result: Tensor, variables: list[Tensor]) -> Sequence[Tensor | None]:
    """Return gradients of the result; None for variables that its graph does not contain."""
    if not result.requires_grad:
        return [None] * len(variables)
    return torch.autograd.grad(result, variables, allow_unused=True)


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()


def _where(tasks: int, earlier: int) -> str:
    return f"in the {'second' if earlier else 'first'} step, with {tasks} tasks"


def _likely_cause(
    subject: HomogenizerSubject, inputs: Inputs, name: str, expected: float, earlier: int
) -> str:  # fmt: skip
    if detached := _find_detached_stage(subject, inputs, earlier, name):
        stage, quantity = detached
        return f"`{stage}` detaches its {quantity} (.detach(), .item(), .tolist(), torch.tensor(...), no_grad)"
    if derivatives_close(expected, 0.0) and name == "losses" and not earlier:
        return (
            "state is initialized from this step's losses without their graph, so the first step's result does not "
            "change with the losses although the derivative by autograd is not zero; initialize the state by a "
            "constant, or set it only in `update`"
        )
    if earlier:
        return "a result computed from the state of an earlier step is detached, or uses this step's state instead"
    return "a part of the computation is detached, or a custom backward is wrong"


def _find_detached_stage(
    subject: HomogenizerSubject, inputs: Inputs, earlier: int, name: str
) -> tuple[str, str] | None:  # fmt: skip
    """Return the stage whose result changes with the rows or losses but has no graph to them, and the quantity.

    `name` is the input with the wrong derivative.
    """
    results: list[tuple[str, Tensor]] = []

    def record(homogenizer: Any, stage: str, call: Callable[..., Any], *arguments: Any) -> Any:
        result = call(*arguments)
        value = result.value if isinstance(result, StageResult) else result
        if isinstance(value, Jacobian):
            value = torch.cat([block.flatten() for block in value.materialize().values()])
        if stage in ("mix", "rows") and isinstance(value, Tensor):
            results.append((stage, value))
        return result

    def stages(at: Inputs) -> list[tuple[str, Tensor]]:
        results.clear()
        pipe = _after_steps(subject, at["rows"], earlier)
        results.clear()
        subject.combine(at["rows"], losses=at["losses"], pipe=wrap_stages(pipe, record), create_graph=True)
        return list(results)

    variables = {other: _leaf(tensor) for other, tensor in inputs.items()}
    original = stages(variables)
    scaled = inputs[name] * torch.linspace(0.7, 1.4, inputs[name].numel(), dtype=torch.float64).view_as(inputs[name])
    changed = stages({**variables, name: _leaf(scaled)})
    for (stage, before), (_, after) in zip(original, changed, strict=True):
        [gradient] = _gradients(before.square().sum(), [variables[name]])
        if gradient is None and not torch.allclose(before, after, rtol=1e-9, atol=1e-12):
            return stage, "losses" if name == "losses" else "rows (or norms, or Gramian)"
    return None


def _require_second_order(
    value: Callable[[Inputs], Tensor], inputs: Inputs, along: Inputs, tasks: int, earlier: int
) -> None:
    def directional_derivative(at: Inputs) -> Tensor:
        """The derivative of the value along one direction in all inputs, with its graph."""
        variables = {name: tensor if tensor.requires_grad else _leaf(tensor) for name, tensor in at.items()}
        leaves = list(variables.values())
        gradients = torch.autograd.grad(value(variables), leaves, create_graph=True, allow_unused=True)
        parts = [(g * a).sum() for g, a in zip(gradients, along.values(), strict=True) if g is not None]
        return torch.stack(parts).sum()

    for name in inputs:
        # Another direction than the first: the second derivative along the same direction may vanish.
        found, expected = _derivatives(directional_derivative, inputs, {name: along[name].flip(0)})
        require_derivative(
            found, expected,
            f"the second derivative w.r.t. the {name} is wrong {_where(tasks, earlier)}, although the first is "
            "correct: along random directions it is", scale=1.0, cause=lambda: CUSTOM_BACKWARD,
        )  # fmt: skip


def _require_finite_derivatives_at_zero(value: Callable[[Inputs], Tensor], inputs: Inputs) -> None:
    rows = inputs["rows"].clone()
    rows[0] = 0
    variables = {"rows": _leaf(rows), "losses": _leaf(inputs["losses"])}
    gradients = torch.autograd.grad(value(variables), list(variables.values()), allow_unused=True)
    if not all(bool(gradient.isfinite().all()) for gradient in gradients if gradient is not None):
        raise CheckFailure(
            "with a zero row a derivative is NaN or infinity. Likely cause: a square root or a division at zero; "
            "replace the zero by torch.where before the root or the division",
            jacobian=rows.round(decimals=2),
        )


@check("homogenizers", claim="differentiable")
def meta_gradient(subject: HomogenizerSubject) -> None:
    """The direction of rows in a dict of tensors, as those of a network, is differentiable w.r.t. rows and losses.

    By the chain rule it is then differentiable through the inner loop that computes them. It is compared with central
    differences in the homogenizer's second step, along three random directions.
    """
    generator = torch.Generator().manual_seed(1)
    rows = random_rows(3, 18, seed=1)
    rows[2] = 0.6 * rows[2] - 0.8 * rows[0]  # so that rows conflict
    inputs = {"rows": rows, "losses": torch.linspace(0.5, 1.5, 3, dtype=torch.float64)}
    probe = in_tensors(random_rows(1, 18, seed=2))

    def value(at: Inputs) -> Tensor:
        direction = _differentiable(subject, in_tensors(at["rows"]), at["losses"], 1)
        return torch.stack([(direction[name] * probe[name][0]).sum() for name in probe]).sum()

    for _ in range(3):
        along = {name: torch.randn(x.shape, generator=generator, dtype=x.dtype) for name, x in inputs.items()}
        found, expected = _derivatives(value, inputs, along)
        require_derivative(
            found, expected, "the derivative of the direction of rows in a dict is", scale=1.0,
            cause=lambda: "rows in a dict are detached, while rows in one tensor are not",
        )  # fmt: skip


def _differentiable(subject: HomogenizerSubject, rows: Any, losses: Tensor, earlier: int) -> Any:
    """Return the direction with its graph, after `earlier` steps on fixed other rows."""
    return subject.combine(rows, pipe=_after_steps(subject, rows, earlier), losses=losses, create_graph=True)


def _after_steps(subject: HomogenizerSubject, rows: Any, earlier: int) -> Pipeline:
    pipe, generator = subject.pipeline(assume="differentiable"), torch.Generator().manual_seed(3)
    for _ in range(earlier):
        blocks = {"": rows} if isinstance(rows, Tensor) else rows
        other = {
            name: torch.randn(block.shape, generator=generator, dtype=block.dtype) for name, block in blocks.items()
        }
        subject.combine(other[""] if isinstance(rows, Tensor) else other, pipe=pipe)
    return pipe
