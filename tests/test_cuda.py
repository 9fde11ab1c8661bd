"""Results on a GPU equal those on the CPU; skipped without a GPU."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradhomog
from gradhomog import Task, TaskBatch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = "cuda"

LEARNERS = sorted(set(gradhomog.available("learners")) - {"baseline", "baseline_pp"})


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


def assert_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Assert equality relative to the largest entry: some gradients are 0, as of a bias before normalization."""
    assert all(tensor.device.type == GPU for tensor in found.values())
    size = max(float(tensor.abs().max()) for tensor in expected.values())
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name].cpu(), tensor.cpu(), rtol=1e-7, atol=1e-9 * size)


@pytest.mark.parametrize("execution", [{"engine": "loop"}, {"engine": "vmap"}, {"recompute": True}])
@pytest.mark.parametrize("name", LEARNERS)
def test_rows_of_every_learner_are_those_of_the_cpu(name: str, execution: dict[str, Any]) -> None:
    expected = make_learner(name, "cpu").rows(batch())
    assert_close(make_learner(name, GPU, **execution).rows(batch().to(GPU)).jacobian, expected.jacobian)


def test_recomputation_drops_the_same_activations() -> None:
    rows = []
    for recompute in (False, True):
        learner = make_learner("maml", GPU, drop=0.3, inner_steps=3, engine="loop", recompute=recompute)
        torch.manual_seed(1)
        rows.append(learner.rows(batch().to(GPU)).jacobian)
    assert_close(rows[1], rows[0])


@pytest.mark.parametrize("name", LEARNERS)
def test_training_steps_and_scores_are_those_of_the_cpu(name: str) -> None:
    scores = []
    for device in ("cpu", GPU):
        learner, tasks = make_learner(name, device), batch().to(device)
        outer = torch.optim.SGD(learner.parameters(), lr=0.1)
        for _ in range(3):
            learner.step(tasks, outer)
        scores.append(torch.tensor(learner.evaluate(tasks).losses))
    torch.testing.assert_close(scores[1], scores[0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["maml", "mamlpp", 'reptile(keep_state=true, inner="adam")'])
def test_training_resumes_on_the_cpu_from_a_state_saved_on_the_gpu(name: str) -> None:
    on_gpu = make_learner(name, GPU, homogenizers="gradnorm")
    on_gpu.step(batch().to(GPU), torch.optim.SGD(on_gpu.parameters(), lr=0.1))
    file = io.BytesIO()
    torch.save(on_gpu.state_dict(), file)
    file.seek(0)
    on_cpu = make_learner(name, "cpu", homogenizers="gradnorm")
    on_cpu.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    assert_close(on_gpu.rows(batch().to(GPU)).jacobian, on_cpu.rows(batch()).jacobian)


@pytest.mark.parametrize("stage", ["rotate", "isi", "reweight + rotate + isi", "rotate + pcgrad", "gradnorm + cagrad"])
@pytest.mark.parametrize("name", ["maml", "protonet"])
def test_stages_act_on_a_learner_as_on_the_cpu(name: str, stage: str) -> None:
    reports = []
    for device in ("cpu", GPU):
        learner = make_learner(name, device, homogenizers=stage)
        reports.append(learner.step(batch().to(device), torch.optim.SGD(learner.parameters(), lr=0.1)))
    assert torch.isfinite(reports[1].losses).all()
    torch.testing.assert_close(reports[1].losses.cpu(), reports[0].losses, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", gradhomog.available())
def test_backward_gives_the_gradients_of_the_cpu(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 5, generator=generator).double(), torch.randn(32, 3, generator=generator).double()
    torch.manual_seed(0)
    trunk, heads = nn.Sequential(nn.Linear(5, 8), nn.Tanh()).double(), nn.ModuleList(nn.Linear(8, 1) for _ in range(3))
    grads = []
    for device in ("cpu", GPU):
        shared, own = copy.deepcopy(trunk).to(device), copy.deepcopy(heads).double().to(device)
        pipe = gradhomog.pipeline(name)
        views = gradhomog.task_features(shared(x.to(device)), pipe, tasks=3)
        losses = [(own[i](views[i]) - y[:, [i]].to(device)).square().mean() for i in range(3)]
        gradhomog.backward(losses, pipe, parameters=shared, features=views)
        grads.append({path: parameter.grad for path, parameter in shared.named_parameters()})
    assert_close(grads[1], grads[0])
