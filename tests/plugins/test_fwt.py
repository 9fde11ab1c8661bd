"""FWT: the affine map for fixed draws, moments of many draws, layers, and when draws are repeated."""

import math

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import OptionError, TaskBatch, TaskKey
from gradhomog.experiments.run_file import content
from gradhomog_plugins.fwt import FWT, select_layers

KEY, OTHER = TaskKey(0), TaskKey(1)


def network(dtype=torch.float64, channels=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, channels, 3), nn.BatchNorm2d(channels)).to(dtype)


def images(count=5, dtype=torch.float64):
    return torch.randn(count, 1, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


def outputs(pipe, encoder, inputs, keys=(KEY,), parts=("support",)):
    """Outputs of the attached encoder for each key and part."""
    found = []
    with torch.no_grad(), pipe.attached(encoder):
        for key in keys:
            for part in parts:
                pipe.begin(key, part)
                found.append(encoder(inputs))
    return found


def test_a_fixed_draw_gives_the_formula():
    # The noise of channel c is that of the generator which `begin` receives; softplus is written out.
    encoder, fwt = network(), FWT(gamma=0.02, beta=0.1)
    handles = fwt.attach(encoder)
    fwt.begin(KEY, "support", torch.Generator().manual_seed(7))
    transformed = encoder(images())
    for handle in handles:
        handle.remove()
    noise = torch.randn(2, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    gamma = 1 + math.log(1 + math.exp(100 * 0.02)) / 100 * noise[0]
    beta = math.log(1 + math.exp(100 * 0.1)) / 100 * noise[1]
    expected = gamma[:, None, None] * encoder(images()) + beta[:, None, None]
    torch.testing.assert_close(transformed, expected, rtol=1e-13, atol=1e-13)


def test_moments_of_many_draws_are_those_of_the_paper():
    # 4000 channels: the standard error of a mean is σ/63, that of a standard deviation σ/89.
    encoder, pipe = nn.Sequential(nn.BatchNorm1d(4000)).double(), gradhomog.pipeline("fwt")
    x = torch.randn(2, 4000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = encoder(x).detach()
    (transformed,) = outputs(pipe, encoder, x)
    scales = (transformed[0] - transformed[1]) / (plain[0] - plain[1])
    shifts = transformed[0] - scales * plain[0]
    for values, mean, deviation in ((scales, 1.0, 0.3), (shifts, 0.0, 0.5)):
        assert abs(float(values.mean()) - mean) < 5 * deviation / 63
        assert abs(float(values.std()) - deviation) < 5 * deviation / 89


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_zero_spread_is_the_identity(dtype):
    encoder, pipe = network(dtype), gradhomog.pipeline("fwt(gamma=-1, beta=-1)")
    assert torch.equal(outputs(pipe, encoder, images(dtype=dtype))[0], encoder(images(dtype=dtype)))


def test_support_and_query_of_a_task_share_the_draws_and_tasks_differ():
    first, query, other, _ = outputs(gradhomog.pipeline("fwt"), network(), images(), (KEY, OTHER), ("support", "query"))
    assert torch.equal(first, query)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("norm", ["batch", "support", "frozen"])
def test_rows_change_under_every_policy_of_batch_normalization_and_predictions_do_not(norm):
    y = torch.arange(6) % 2
    batch = TaskBatch(images(6)[None], y[None], images(6)[None] + 0.1, y[None])
    rows, answers = [], []
    for homogenizers in ("none", "fwt"):
        torch.manual_seed(0)
        encoder = nn.Sequential(*network(), nn.Tanh(), nn.Flatten()).double()
        learner = gradhomog.learner(
            "maml", encoder, nn.Linear(48, 2).double(), homogenizers=homogenizers, inner_steps=2, norm=norm
        )
        rows.append(learner.rows(batch).jacobian["encoder.0.weight"])
        answers.append(learner.predict(batch.support_x[0], y, batch.query_x[0]))
    assert not torch.allclose(*rows)
    assert torch.equal(*answers)


# -- layers ----------------------------------------------------------------------------------------------------------


def test_plain_networks_are_transformed_after_every_batch_normalization():
    encoder, _ = content.build_network("conv4", (3, 28, 28), 5, 4)
    assert list(select_layers(encoder, None)) == ["1", "5", "9", "13"]


def test_residual_networks_are_transformed_at_the_end_of_blocks_and_in_shortcuts():
    # In the authors' ResNet-10: BN2 and BNshortcut of each block; neither the first layer nor BN1.
    encoder, _ = content.build_network("resnet10", (3, 28, 28), 5, 4)
    expected = {f"layer{stage}.0.bn2" for stage in range(1, 5)} | {
        f"layer{stage}.0.downsample.1" for stage in range(2, 5)
    }
    assert set(select_layers(encoder, None)) == expected
    encoder, _ = content.build_network("resnet12", (3, 28, 28), 5, 4)
    assert {name.partition(".0.")[2] for name in select_layers(encoder, None)} == {"bn3", "downsample.1"}


def test_networks_without_batch_normalization_are_transformed_after_convolutions():
    encoder = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Conv2d(2, 2, 3), nn.Flatten())
    assert list(select_layers(encoder, None)) == ["0", "2"]


def test_layers_that_do_not_exist_raise():
    with pytest.raises(OptionError, match=r"`layers` must match layers .*'bn\*' matches none of 0 \(Conv2d\), 1 \(Ba"):
        FWT(layers="bn*").attach(network())
    with pytest.raises(OptionError, match=r"must have batch normalization or convolutions; got Linear with .* none"):
        FWT().attach(nn.Linear(2, 2))
