"""The benchmark of `backward`: all workloads compute the same step, and the table has the documented rows."""

from __future__ import annotations

import pytest
import torch

from tests.benchmarks.backward import BENCHMARK, Cosine, gradient, workloads
from tests.benchmarks.backward_inputs import Setting
from tests.benchmarks.backward_peers import BY_HAND, SUMMED

VECTORS, IMAGES = (3, 4, 6), (2, 3, 16, 4)
QUICK = {"rounds": 3, "seconds": 0.01}
PEERS = ["torchjd Mean", "torchjd Mean, chunk 1", "torchjd UPGrad", "torchjd UPGrad, chunk 1"]

both = pytest.mark.parametrize("shape", [VECTORS, IMAGES], ids=["vectors", "images"])


def found(workload, batch):
    workload(batch)
    return gradient(workload)


def losses(network, batch):
    features = network.encoder(batch.inputs)
    heads = zip(network.heads, batch.targets, strict=True)
    return torch.stack([(head(features) - target).square().mean() for head, target in heads])


@both
def test_all_means_are_the_gradient_of_the_mean_loss_in_float64(shape):
    setting = Setting(shape, torch.float64)
    made = workloads(["none", "pcgrad"], setting)
    batch, network = setting.batch(1), setting.network()
    gradients = torch.autograd.grad(losses(network, batch).mean(), [*network.encoder.parameters()])
    expected = torch.cat([one.flatten() for one in gradients])
    means = {label for label, workload in made.items() if workload.mean}
    assert means == {BY_HAND, SUMMED, "backward none", "backward none, features", *PEERS[:2]}
    for label in means:
        factor = shape[0] if label == SUMMED else 1
        torch.testing.assert_close(found(made[label], batch), factor * expected, rtol=1e-9, atol=1e-12, msg=label)


@both
def test_both_levels_of_static_weights_take_the_step_of_the_weighted_loss(shape):
    setting, weights = Setting(shape, torch.float64), [2.0, 1.0, 5.0][: shape[0]]
    text = f"static(weights={weights})"
    made = workloads([text], setting)
    batch, network = setting.batch(1), setting.network()
    weighted = losses(network, batch) @ torch.tensor(weights).double()
    gradients = torch.autograd.grad(weighted, [*network.encoder.parameters()])
    expected = torch.cat([one.flatten() for one in gradients])
    for label in (f"backward {text}", f'backward {text}, level="features"'):
        cosine = torch.cosine_similarity(found(made[label], batch), expected, dim=0)
        assert cosine == pytest.approx(1, abs=1e-12), label
        assert not made[label].mean
    chunks = [found(made[label], batch) for label in PEERS[2:]]
    torch.testing.assert_close(chunks[0], chunks[1], rtol=1e-9, atol=1e-12)


def test_heads_have_a_gradient_in_every_workload():
    setting = Setting(VECTORS)
    for label, workload in workloads(["none", "pcgrad"], setting).items():
        workload(setting.batch(0))
        assert all(parameter.grad is not None for parameter in workload.network.heads.parameters()), label


@both
def test_a_step_does_not_change_the_parameters_and_repeats_its_gradient(shape):
    setting = Setting(shape)
    start = [parameter.detach().clone() for parameter in setting.network().parameters()]
    for workload in workloads(["none"], setting).values():
        first = found(workload, setting.batch(0)).clone()
        torch.testing.assert_close(found(workload, setting.batch(0)), first)
        assert all(map(torch.equal, workload.network.parameters(), start))


def test_the_cosine_is_that_of_means_only():
    setting = Setting(IMAGES)
    made = workloads(["none", "pcgrad"], setting)
    cosine = Cosine(setting)
    for label, workload in made.items():
        workload(setting.batch(0))
        value = cosine(workload)
        assert value == pytest.approx(1, abs=1e-5) if workload.mean else value is None, label


@pytest.mark.slow
def test_the_default_table_has_loops_homogenizers_and_peers():
    vectors, images = BENCHMARK([], [VECTORS, IMAGES], **QUICK)
    ours = ["backward none", "backward none, features"]
    for name in ("pcgrad", "mgda", "upgrad"):
        ours += [f"backward {name}", f'backward {name}, level="features"']
    for comparison in (vectors, images):
        rows = comparison.table.rows
        assert [row.label for row in rows] == [BY_HAND, SUMMED, *ours, *PEERS]
        assert comparison.table.failures == {}
        to_summed, cosine = comparison.columns
        assert (to_summed.title, cosine.title) == (f"to {SUMMED}", "cosine")
        assert set(cosine.values) == {BY_HAND, SUMMED, *ours[:2], *PEERS[:2]}
        assert len({row.seconds.n for row in rows}) == 1
        assert all(row.peak_bytes for row in rows)
    assert vectors.table.title == "one step: mlp 4-6-6-128, 3 heads, 64 vectors, 1 thread"
    assert images.table.title == (
        "one step: conv4 with group normalization, 4 filters, 2 heads, 25 images (3, 16, 16), 1 thread"
    )
