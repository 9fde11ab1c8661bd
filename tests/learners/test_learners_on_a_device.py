"""Rows, steps, scores and states of learners on the device of `pytest --device` are those of the CPU."""

import io
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torchopt
from torch import Tensor, nn

import gradhomog
from gradhomog import Task, TaskBatch
from gradhomog_adapters.torchopt import meta_step

pytestmark = pytest.mark.slow_after_first

LEARNERS = sorted(gradhomog.available("learners"))
# At meta-test these fit a classifier in many steps, in which rounding of the device grows.
FITTED = {"baseline", "baseline_pp", "skd"}


def batch(tasks: int = 3, ways: int = 3) -> TaskBatch:
    generator = torch.Generator().manual_seed(0)

    def task() -> Task:
        images = torch.randn(3 * ways, 1, 8, 8, generator=generator, dtype=torch.float64)
        labels = torch.arange(3 * ways) % ways
        return Task(images[:ways], labels[:ways], images[ways:], labels[ways:])

    return TaskBatch.stack([task() for _ in range(tasks)])


def make_learner(name: str, device: str, *, drop: float = 0.0, **options: Any) -> gradhomog.Learner:
    torch.manual_seed(0)
    encoder = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.Dropout(drop),
        nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(),
    ).double()  # fmt: skip
    head = nn.Linear(16, 3).double()
    return gradhomog.learner(name, encoder.to(device), head.to(device), **options)


def assert_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], device: str) -> None:
    """Assert equality relative to the largest entry: some gradients are 0, as of a bias before normalization."""
    assert {tensor.device.type for tensor in found.values()} == {torch.device(device).type}
    size = max(float(tensor.abs().max()) for tensor in expected.values())
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name].cpu(), tensor.cpu(), rtol=1e-7, atol=1e-9 * size)


@pytest.mark.parametrize("execution", [{"engine": "loop"}, {"engine": "vmap"}, {"recompute": True}], ids=str)
@pytest.mark.parametrize("name", LEARNERS)
def test_rows_of_every_learner_are_those_of_the_cpu(name: str, execution: dict[str, Any], device: str) -> None:
    expected = make_learner(name, "cpu").rows(batch())
    assert_close(make_learner(name, device, **execution).rows(batch().to(device)).jacobian, expected.jacobian, device)


@pytest.mark.parametrize("name", LEARNERS)
def test_training_steps_and_scores_are_those_of_the_cpu(name: str, device: str) -> None:
    losses = []
    for place in ("cpu", device):
        learner, tasks = make_learner(name, place), batch().to(place)
        outer = torch.optim.SGD(learner.parameters(), lr=0.1)
        steps = [learner.step(tasks, outer).losses.cpu() for _ in range(2)]
        losses.append(torch.stack([*steps, torch.tensor(learner.evaluate(tasks).losses, dtype=torch.float64)]))
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-3 if name in FITTED else 1e-6, atol=1e-8)


def test_recomputation_drops_the_same_activations(device: str) -> None:
    rows = []
    for recompute in (False, True):
        learner = make_learner("maml", device, drop=0.3, inner_steps=3, engine="loop", recompute=recompute)
        torch.manual_seed(1)
        rows.append(learner.rows(batch().to(device)).jacobian)
    assert_close(rows[1], rows[0], device)


@pytest.mark.parametrize("name", ["maml", "mamlpp", 'reptile(keep_state=true, inner="adam")'])
def test_training_resumes_on_the_cpu_from_a_state_saved_on_the_device(name: str, device: str) -> None:
    before = make_learner(name, device, homogenizers="gradnorm")
    before.step(batch().to(device), torch.optim.SGD(before.parameters(), lr=0.1))
    state = before.state_dict()
    if device == "pretend":  # its tensors cannot be pickled
        state = torch.utils._pytree.tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, state)
    else:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, map_location="cpu", weights_only=True)
    after = make_learner(name, "cpu", homogenizers="gradnorm")
    after.load_state_dict(state)
    assert_close(before.rows(batch().to(device)).jacobian, after.rows(batch()).jacobian, device)


@pytest.mark.parametrize(
    "stage", ["rotate", "rotograd", "fwt", "reweight + rotate", "rotate + pcgrad", "gradnorm + cagrad", "isi"]
)
@pytest.mark.parametrize("name", ["maml", "protonet"])
def test_stages_act_on_a_learner_as_on_the_cpu(name: str, stage: str, device: str) -> None:
    losses = []
    for place in ("cpu", device):
        learner = make_learner(name, place, homogenizers=stage)
        outer = torch.optim.SGD(learner.parameters(), lr=0.1)
        losses.append(torch.stack([learner.step(batch().to(place), outer).losses.cpu() for _ in range(2)]))
    if stage == "isi" and torch.device(device).type == "cuda":
        # Its masks are drawn by a generator on the GPU, whose numbers differ from those of the CPU.
        assert losses[1].isfinite().all()
    else:
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=1e-8)


def test_masks_of_isi_on_the_device_are_a_function_of_the_seed(device: str) -> None:
    rows = [make_learner("maml", device, homogenizers="isi").rows(batch().to(device)).jacobian for _ in range(2)]
    assert_close(rows[1], rows[0], device)


def test_a_diagnosis_on_the_device_is_that_of_the_cpu(device: str) -> None:
    found = [make_learner("maml", place).diagnose([batch().to(place)] * 4, batches=4) for place in ("cpu", device)]
    torch.testing.assert_close(found[1].single.norms.value, found[0].single.norms.value, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("optimizer", [torchopt.MetaSGD, torchopt.MetaAdam])
def test_a_custom_torchopt_loop_has_the_gradients_of_the_cpu(optimizer: Any, device: str) -> None:
    def gradients(place: str) -> dict[str, Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).double().to(place)
        inner, pipe = optimizer(net, lr=0.1), gradhomog.pipeline("upgrad")
        x = torch.linspace(-1, 1, 8, dtype=torch.float64).to(place)[:, None]
        with meta_step(net, pipe, inner=inner) as step:
            for slope in (1.0, -1.0):
                with step.task(domain="lines"):
                    inner.step((net(x) - slope * x).square().mean())
                    step.add((net(x) - slope * x).square().mean())
        return {name: parameter.grad for name, parameter in net.named_parameters() if parameter.grad is not None}

    assert_close(gradients(device), gradients("cpu"), device)


def test_autocast_on_the_device_changes_losses_by_less_than_its_precision(device: str) -> None:
    if device == "pretend":
        pytest.skip("the pretend device has no kernels for autocast")
    losses = [make_learner("maml", device, autocast=autocast).rows(batch().to(device)).losses.cpu()
              for autocast in (None, "bfloat16")]  # fmt: skip
    torch.testing.assert_close(losses[1].double(), losses[0], rtol=0.1, atol=0.05)
