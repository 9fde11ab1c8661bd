"""Directions, gradients, learners and states on the device of `pytest --device` are those of the CPU.

Run it with `--device cuda` on a GPU, or with `--device pretend`, which refuses operations on tensors of two devices.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import gradhomog
from gradhomog import DataError, Homogenizer, Jacobian, OptionError, Pipeline, Step, as_jacobian, jacobian_of_rows

pytestmark = pytest.mark.slow_after_first

HOMOGENIZERS = gradhomog.available()
# Masks of ISI are drawn by a generator on the device, whose numbers differ from those of the CPU.
RANDOM_ON_DEVICE = {"isi", "rotogbml"}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def move(values: Any, device: str, dtype: torch.dtype = torch.float64) -> Any:
    """Move all tensors in nested containers to a device, floating-point ones to a dtype."""

    def moved(leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.to(device, dtype) if leaf.is_floating_point() else leaf.to(device)

    return tree_map(moved, values)


def assert_close(found: Any, expected: Any, device: str, tolerance: float = 1e-9) -> None:
    """Assert that tensors are on the device, and equal to those of the CPU relative to the largest entry."""
    found, expected = (x if isinstance(x, Mapping) else {"": x} for x in (found, expected))
    assert found.keys() == expected.keys()
    size = max(float(tensor.abs().max()) for tensor in expected.values())
    for name, tensor in expected.items():
        assert found[name].device.type == torch.device(device).type, name
        assert float((found[name].cpu().double() - tensor.double()).abs().max()) <= tolerance * size, name


def reads(pipe: Pipeline) -> set[str]:
    return {need for member in pipe.members for need in member.needs}


# -- directions ------------------------------------------------------------------------------------------------------


def combine_inputs(pipe: Pipeline, seed: int = 0) -> tuple[Tensor, dict[str, Any]]:
    """Return rows, and all else that the homogenizers read."""
    stages = len(pipe.requirements.transforming) + 1
    inputs: dict[str, Any] = {"losses": normal(4, seed=seed + 1).abs() + 0.1}
    if "features" in reads(pipe):
        inputs["features"] = [normal(4, 6, 8, seed=seed + 2)] * stages
        inputs["feature_grads"] = [normal(4, 6, 8, seed=seed + 3)] * stages
        inputs["targets"] = torch.arange(6).remainder(3).expand(4, 6)
    if "kernel_traces" in reads(pipe):
        inputs["kernel_traces"] = normal(4, seed=seed + 4).abs()
    return normal(4, 50, seed=seed) + 0.2, inputs


def combine(pipe: Pipeline, device: str, dtype: torch.dtype, seed: int) -> Tensor:
    rows, inputs = move(combine_inputs(pipe, seed), device, dtype)
    found: Tensor = pipe.combine(rows, **inputs)
    return found


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-3)])
@pytest.mark.parametrize(
    "name", [*HOMOGENIZERS, "mgda(on='features')", "rotate(parameterization='geodesic', pool='sample')"]
)
def test_two_steps_return_the_directions_of_the_cpu(
    name: str, dtype: torch.dtype, tolerance: float, device: str
) -> None:
    on_device, on_cpu = gradhomog.pipeline(name), gradhomog.pipeline(name)
    for seed in (0, 10):
        expected = combine(on_cpu, "cpu", torch.float64, seed)
        assert_close(combine(on_device, device, dtype, seed), expected, device, tolerance)


@pytest.mark.parametrize("name", HOMOGENIZERS)
@pytest.mark.parametrize(("first", "loaded", "second"), [("cpu", "device", "device"), ("device", "cpu", "cpu"),
                                                         ("device", "cpu", "device")])  # fmt: skip
def test_a_state_continues_on_another_device(name: str, first: str, loaded: str, second: str, device: str) -> None:
    """The last: a state on the CPU, as after `torch.load(..., map_location="cpu")`, takes steps on a device."""
    where = {"cpu": "cpu", "device": device}
    before, after, reference = (gradhomog.pipeline(name) for _ in range(3))
    combine(before, where[first], torch.float64, 0)
    after.load_state_dict(move(before.state_dict(), where[loaded]))
    combine(reference, where["cpu"], torch.float64, 0)
    expected = combine(reference, where["cpu"], torch.float64, 10)
    assert_close(combine(after, where[second], torch.float64, 10), expected, where[second])


class LossesAsWeights(Homogenizer):
    def mix(self, step: Step) -> Tensor:
        return step.losses


def test_without_create_graph_a_stage_reads_losses_without_their_graph(device: str) -> None:
    rows, losses = move((torch.ones(2, 3), torch.tensor([1.0, 3.0])), device)
    direction = gradhomog.pipeline([LossesAsWeights()]).combine(rows, 1 * losses.requires_grad_())
    assert_close(direction, torch.full((3,), 2.0), device)


# -- Jacobians -------------------------------------------------------------------------------------------------------


def jacobians(device: str) -> Iterator[Jacobian]:
    blocks = move({"a": normal(3, 4, 5), "b": normal(3, 7, seed=1)}, device)
    dense = as_jacobian(blocks)
    yield dense
    yield jacobian_of_rows([{name: block[task] for name, block in blocks.items()} for task in range(3)])
    yield dense.repeat({name: block[0] for name, block in blocks.items()})
    yield dense.mix(normal(3, seed=2))
    yield dense.mix(move(normal(3, 3, seed=2), device))


OPERATIONS: dict[str, Callable[[Jacobian, str], Any]] = {
    "weighted_mean": lambda rows, device: rows.weighted_mean(normal(3, seed=3)),
    "weighted_mean of a device": lambda rows, device: rows.weighted_mean(move(normal(3, seed=3), device)),
    "mean": lambda rows, device: rows.mean(),
    "materialize": lambda rows, device: rows.materialize(),
    "row": lambda rows, device: rows.row(1),
    "select": lambda rows, device: rows.select([2, 0]).mean(),
    "map": lambda rows, device: rows.map(torch.abs).mean(),
    "mix": lambda rows, device: rows.mix(move(normal(3, 3, seed=4), device)).materialize(),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_rows_and_directions_of_a_jacobian_stay_on_the_device(operation: str, device: str) -> None:
    for found, expected in zip(jacobians(device), jacobians("cpu"), strict=True):
        apply = OPERATIONS[operation]
        assert_close(apply(found, device), apply(expected, "cpu"), device)


@pytest.mark.parametrize("scale", [1.0, 1e-25])
def test_statistics_of_a_jacobian_are_on_the_cpu(scale: float, device: str) -> None:
    for found, expected in zip(jacobians(device), jacobians("cpu"), strict=True):
        found, expected = (rows.map(lambda block: scale * block.float()) for rows in (found, expected))
        for statistic in ("gramian", "norms", "squared_norms"):
            for pattern in ("*", "a"):
                values = [getattr(rows, statistic)(pattern) for rows in (found, expected)]
                assert_close(values[0], values[1], "cpu", 1e-6)
        assert found.finite_tasks() == [True] * 3


def test_the_gramian_has_a_graph_to_rows_on_the_device(device: str) -> None:
    rows = move(normal(3, 5), device).requires_grad_()
    (found,) = torch.autograd.grad(as_jacobian(rows).gramian().sum(), rows)
    assert_close(found, 2 * normal(3, 5).sum(0).expand(3, 5), device)


SOLVERS: dict[str, Callable[[Tensor], gradhomog.Solution]] = {
    "minimum_norm": gradhomog.minimum_norm_weights,
    "bargaining": gradhomog.bargaining_weights,
    "conflict_averse": lambda gramian: gradhomog.conflict_averse_weights(gramian, 0.5),
    "dual_cone": lambda gramian: gradhomog.dual_cone_weights(gramian, torch.ones_like(gramian[0])),
}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("tasks", [2, 4])
def test_solvers_return_weights_on_the_device_of_the_gramian(name: str, tasks: int, device: str) -> None:
    rows = normal(tasks, 9)
    gramian = rows @ rows.T
    assert_close(SOLVERS[name](gramian.to(device)).weights, SOLVERS[name](gramian).weights, device)


# -- gradients -------------------------------------------------------------------------------------------------------


def gradients(text: str, device: str, how: str, **options: Any) -> dict[str, Tensor]:
    """Return the gradients of a trunk and of one head per task after two batches."""
    torch.manual_seed(0)
    trunk = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Tanh(), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(8, 6), nn.Tanh()
    )
    net = nn.ModuleDict({"trunk": trunk, "heads": nn.ModuleList(nn.Linear(6, 1) for _ in range(3))})
    net.double().to(device)
    pipe, shared = gradhomog.pipeline(text), dict(trunk.named_parameters())

    def losses(batch: int) -> tuple[list[Tensor], Any, list[Tensor]]:
        x, y = move((normal(16, 1, 6, 6, seed=batch), normal(16, 3, seed=batch + 1)), device)
        views = gradhomog.task_features(net["trunk"](x), pipe, tasks=3)
        residuals = [
            (head(view) - target[:, None]).flatten()
            for head, view, target in zip(net["heads"], views, y.unbind(1), strict=True)
        ]
        return [residual.square().mean() for residual in residuals], views, residuals

    with pipe.attached(trunk):
        for batch in (0, 2):
            values, views, residuals = losses(batch)
            keywords = dict(options)
            if "kernel_traces" in reads(pipe):
                keywords["residuals"] = residuals
            if how == "loss":
                gradhomog.loss(values, pipe, parameters=shared, features=views, **keywords).backward()
            elif how == "accumulated":
                with gradhomog.accumulated(pipe, parameters=shared, **keywords) as accumulation:
                    accumulation.add(values, views)
            else:
                gradhomog.backward(values, pipe, parameters=shared, features=views, **keywords)
    return {name: parameter.grad for name, parameter in net.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("name", HOMOGENIZERS)
def test_gradients_of_trunk_and_heads_are_those_of_the_cpu(name: str, device: str) -> None:
    found = gradients(name, device, "backward")
    if name in RANDOM_ON_DEVICE and torch.device(device).type == "cuda":
        assert all(gradient.isfinite().all() for gradient in found.values())
    else:
        assert_close(found, gradients(name, "cpu", "backward"), device)


@pytest.mark.parametrize("name", ["none", "uw", "upgrad", "pcgrad"])
@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("backward", {"level": "features"}),
        ("backward", {"heads": "weighted"}),
        ("backward", {"per": "tensor"}),
        ("backward", {"memory": "low"}),
        ("loss", {}),
        ("loss", {"level": "features"}),
        ("loss", {"heads": "weighted"}),
        ("accumulated", {}),
    ],
)
def test_options_of_backward_give_the_gradients_of_the_cpu(
    name: str, how: str, options: dict[str, Any], device: str
) -> None:
    assert_close(gradients(name, device, how, **options), gradients(name, "cpu", how, **options), device)


@pytest.mark.parametrize("name", ["none", "uw", "upgrad", "graddrop"])
def test_a_task_without_a_gradient_has_a_zero_row_on_the_device(name: str, device: str) -> None:
    def grad(device: str) -> Tensor:
        a, b = (move(normal(5, seed=seed), device).requires_grad_() for seed in (0, 1))
        losses = [a.square().sum(), (a * b).sum().square(), b.square().sum() + 1]
        gradhomog.backward(losses, gradhomog.pipeline(name), parameters={"a": a, "b": b})
        return torch.cat([a.grad, b.grad])

    assert_close(grad(device), grad("cpu"), device)


def test_losses_may_be_numbers_on_the_cpu(device: str) -> None:
    losses = [1.0, 0.5, 2.0, 0.1]
    found = gradhomog.pipeline("uw").combine(normal(4, 50).to(device), losses=losses)
    assert_close(found, gradhomog.pipeline("uw").combine(normal(4, 50), losses=losses), device)


def test_nonfinite_tasks_are_dropped_on_the_device(device: str) -> None:
    rows, losses = normal(4, 6), normal(4, seed=1)
    rows[1, 2] = torch.nan
    pipe = gradhomog.pipeline("upgrad", nonfinite="drop")
    found = pipe.combine(rows.to(device), losses=losses.to(device))
    assert_close(found, gradhomog.pipeline("upgrad").combine(rows[[0, 2, 3]]), device)
    with pytest.raises(gradhomog.NonfiniteError, match="task 1 is not finite"):
        gradhomog.pipeline("upgrad").combine(rows.to(device), losses=losses.to(device))


def test_parameters_on_two_devices_raise_and_those_of_one_are_homogenized(device: str) -> None:
    if device == "cpu":
        pytest.skip("needs a second device; run with --device pretend, or with --device cuda on a GPU")
    first, second = nn.Linear(4, 5).double(), nn.Linear(5, 6).double().to(device)
    heads = nn.ModuleList(nn.Linear(6, 1) for _ in range(2)).double().to(device)

    def losses() -> list[Tensor]:
        z = second(first(normal(8, 4)).to(device))
        return [(head(z) - 1).square().mean() for head in heads]

    with pytest.raises(OptionError, match=r"shared parameters must be on one device; got '0.weight' on cpu and "):
        gradhomog.backward(losses(), gradhomog.pipeline("pcgrad"), parameters=nn.Sequential(first, second))
    with pytest.raises(DataError, match=r"must be on one device; got cpu and .* for `b`"):
        gradhomog.pipeline("none").combine({"a": normal(2, 3), "b": normal(2, 3).to(device)})
    step = gradhomog.backward(losses(), gradhomog.pipeline("pcgrad"), parameters=second)
    expected = torch.autograd.grad(torch.stack(losses()).sum(), first.weight)[0]
    torch.testing.assert_close(first.weight.grad, expected)
    assert_close(second.weight.grad, step.direction["weight"].cpu(), device)
