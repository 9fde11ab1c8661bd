"""The CPU waits for the device a few times per step, for named reasons, and not more often for more tensors.

Counted with `--device pretend` (tests/pretend_device.py) and, without the reasons, with `--device cuda`.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import Pipeline
from gradhomog.rows import as_jacobian, jacobian_of_rows
from tests import pretend_device
from tests.learners.test_learners_on_a_device import LEARNERS, batch, make_learner
from tests.test_device import combine_inputs, move, reads

pytestmark = pytest.mark.slow_after_first

GUIDE = Path(__file__).parents[1] / "docs" / "guide" / "gpu.md"
Counts = Counter[str]

DIRECTION, GRAMIAN, LOSSES, ROWS = "direction", "Gramian", "losses", "rows"
# Functions of the core that wait; others are named in `OWN`.
REASONS = {
    "rows/arithmetic.all_finite": DIRECTION,
    "rows/arithmetic.products": GRAMIAN,
    "rows/arithmetic._underflowing": GRAMIAN,
    "gradhomog_plugins/_flat_rows._inner_products": GRAMIAN,
    "step/pipelines._prepare": LOSSES,
    "rows/arithmetic.finite_rows": ROWS,
    "rows/storage.finite_tasks": ROWS,
    "autograd/backward.backward": "incoming gradient",
}
ROTATE = {"rotate._directions": 2, "_pooling.pooled_energy": 1}
# Further synchronizations of single homogenizers and learners, for 4 tasks.
OWN: dict[str, dict[str, int]] = {
    "db_mtl": {GRAMIAN: 1},
    "excess_mtl": {"excess_mtl.update": 1},
    "lra": {"lra.entry_sizes": 1},
    "metabalance": {GRAMIAN: 1},
    "moco": {GRAMIAN: 1},
    "ntk": {"step._given_traces": 1},
    "rotate": ROTATE,
    "rotogbml": ROTATE,
    "rotograd": {
        "rotograd.mix": 1, "rotograd._new_rotations": 5, "_pooling.mean_cosine": 2, "geodesic._defect": 8,
        "geodesic.times_cayley": 4, "geodesic.propose": 4, "base.alignment": 8,
    },
    "tracked": {GRAMIAN: 1},
    "reptile": {"reptile.row": 5},
    "sharp_maml": {"sharp_maml.rows": 1},
}  # fmt: skip


@pytest.fixture
def device(device: str) -> str:
    """The device of `pytest --device`, unless it is the CPU."""
    if device != "pretend" and not device.startswith("cuda"):
        pytest.skip("the CPU does not wait for itself; run with --device pretend, or with --device cuda on a GPU")
    return device


def expected_counts(pipe: Pipeline) -> Counts:
    """Return the counts that follow from the statistics that the homogenizers declare to read, and from `OWN`."""
    found = Counter([DIRECTION])
    found[GRAMIAN] = int(bool(reads(pipe) & {"gramian", "norms"}))
    found[LOSSES] = int("losses" in reads(pipe))
    found[ROWS] = sum(member.stage == "rows" for member in pipe.members)
    return found + Counter(OWN.get(str(pipe), {}))


def count(function: Callable[[], object], device: str) -> Counts:
    """Return the synchronizations of a function: by reason on the pretend device, on a GPU their number."""
    if device == "pretend":
        found = pretend_device.synchronizations()
        found.clear()
        function()
        return Counter(REASONS.get(one.caller, one.caller.split("/")[-1]) for one in found)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            function()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return Counter(["any" for warning in caught if "synchronizing CUDA operation" in str(warning.message)])


def assert_counts(found: Counts, expected: Counts, device: str) -> None:
    if device == "pretend":
        assert found == expected  # fewer: change the table, and docs/guide/gpu.md
    else:
        assert found.total() <= expected.total()


@pytest.mark.parametrize("name", gradhomog.available())
def test_combine_waits_for_what_the_homogenizer_reads(name: str, device: str) -> None:
    pipe = gradhomog.pipeline(name)
    rows, inputs = move(combine_inputs(pipe), device)
    pipe.combine(rows, **inputs)  # the first step has no state
    assert_counts(count(lambda: pipe.combine(rows, **inputs), device), expected_counts(pipe), device)


@pytest.mark.parametrize("name", gradhomog.available())
def test_combine_does_not_wait_more_often_for_more_tensors_and_tasks(name: str, device: str) -> None:
    def counted(tensors: int, tasks: int) -> int:
        pipe = gradhomog.pipeline(name)
        rows, inputs = move(combine_inputs(pipe), device)
        repeats = tasks // 4
        inputs = {key: _repeat(value, repeats) for key, value in inputs.items()}
        blocks = {f"{index}": rows.repeat(repeats, 1) for index in range(tensors)}
        pipe.combine(blocks, **inputs)
        return count(lambda: pipe.combine(blocks, **inputs), device).total()

    tasks = 4 if name == "rotograd" else 8  # each task has a rotation matrix, whose update reads numbers
    assert counted(12, tasks) == counted(1, 4)


@pytest.mark.parametrize("scale", [0.0, 1e-20])
@pytest.mark.parametrize("per_task", [True, False])
def test_rows_outside_the_range_of_float32_cost_one_more_transfer(per_task: bool, scale: float, device: str) -> None:
    def gramian(blocks: int) -> Callable[[], object]:
        rows = [{f"{index}": torch.ones(20_000, device="cpu") * factor for index in range(blocks)}
                for factor in (1.0, scale)]  # fmt: skip
        moved: Any = [{name: part.to(device) for name, part in row.items()} for row in rows]
        if per_task:
            return lambda: jacobian_of_rows(moved).gramian()
        return lambda: as_jacobian({name: torch.stack([row[name] for row in moved]) for name in moved[0]}).gramian()

    transfers = 2  # products, and nonzero rows or products in float64
    for blocks in (2, 9):
        assert_counts(count(gramian(blocks), device), Counter({GRAMIAN: transfers}), device)


def _repeat(value: Any, times: int) -> Any:
    if isinstance(value, list):
        return [_repeat(item, times) for item in value]
    return value.repeat(times, *[1] * (value.dim() - 1))


def trained(name: str, device: str, layers: int, how: str, **options: Any) -> Callable[[], None]:
    """Return a function that computes gradients of three losses once; the forward pass is not part of it."""
    trunk = nn.Sequential(nn.Linear(5, 8), *[nn.Linear(8, 8) for _ in range(layers)]).to(device)
    heads = nn.ModuleList(nn.Linear(8, 1) for _ in range(3)).to(device)
    pipe, x = gradhomog.pipeline(name), torch.randn(16, 5).to(device)

    def forward() -> Callable[[], None]:
        views = gradhomog.task_features(trunk(x), pipe, tasks=3)
        losses = [head(view).square().mean() for head, view in zip(heads, views, strict=True)]
        keywords: Mapping[str, Any] = {"parameters": trunk, "features": views, **options}
        if how == "loss":
            return lambda: gradhomog.loss(losses, pipe, **keywords).backward()
        return lambda: gradhomog.backward(losses, pipe, **keywords) and None

    forward()()
    return forward()


@pytest.mark.parametrize("name", ["none", "uw", "upgrad", "gradnorm", "graddrop", "uw + pcgrad"])
@pytest.mark.parametrize("layers", [1, 9])
@pytest.mark.parametrize(
    ("how", "options", "more"),
    [
        ("backward", {}, {}),
        ("backward", {"heads": "own"}, {}),
        ("backward", {"level": "features"}, {DIRECTION: 1}),  # w.r.t. the features, and w.r.t. the parameters
        ("loss", {}, {"incoming gradient": 1}),
    ],
)
def test_backward_and_loss_wait_as_often_as_combine(
    name: str, layers: int, how: str, options: dict[str, Any], more: dict[str, int], device: str
) -> None:
    expected = expected_counts(gradhomog.pipeline(name)) + Counter(more)
    assert_counts(count(trained(name, device, layers, how, **options), device), expected, device)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_step_of_a_learner_waits_for_the_gramian_of_its_report(name: str, device: str) -> None:
    learner = make_learner(name, device)
    outer, data = torch.optim.SGD(learner.parameters(), lr=0.1), batch(5).to(device)
    learner.step(data, outer)
    expected = Counter([GRAMIAN, DIRECTION]) + Counter(OWN.get(name, {}))
    assert_counts(count(lambda: learner.step(data, outer), device), expected, device)


@pytest.mark.parametrize("stage", ["upgrad", "uw", "isi", "rotate"])
def test_inner_steps_do_not_wait(stage: str, device: str) -> None:
    expected = Counter([DIRECTION, *["isi.measured"] * (stage == "isi")]) + Counter(OWN.get(stage, {}))
    expected += Counter({LOSSES: int(stage == "uw"), GRAMIAN: 1})
    for inner_steps in (1, 4):
        learner = make_learner("maml", device, homogenizers=stage, inner_steps=inner_steps)
        outer, data = torch.optim.SGD(learner.parameters(), lr=0.1), batch().to(device)
        learner.step(data, outer)
        assert_counts(count(lambda: learner.step(data, outer), device), expected, device)  # noqa: B023 called here


def test_the_guide_lists_the_exceptions() -> None:
    page = GUIDE.read_text(encoding="utf-8")
    for name, counts in OWN.items():
        assert f"| `{name}` | {sum(counts.values())} |" in page
