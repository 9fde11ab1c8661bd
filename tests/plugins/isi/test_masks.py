"""The passes and layers for which ISI draws masks, their derivatives and precisions, and reports in learners."""

import copy
import math

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import OptionError
from gradhomog_plugins.isi import ISI
from tests.plugins.isi.networks import KEY, OTHER, attached, begin, images, learner, network, tasks


def drawn(isi, encoder, begins):
    """The zeros of a pass after each of these calls of `begin`; a second pass has the same."""
    with attached(isi, encoder) as zeros:
        for arguments in begins:
            begin(isi, *arguments)
            encoder(images())
            encoder(images())
    for first, second in zip(zeros[::2], zeros[1::2], strict=True):
        assert torch.equal(first, second)
    return zeros[::2]


def test_a_task_keeps_its_masks_through_all_passes_and_another_part_task_or_begin_gets_new_ones():
    begins = [(KEY, "support"), (KEY, "query"), (KEY, "support"), (OTHER, "support"), (OTHER, "support")]
    support, query, again, other, repeated = drawn(ISI(), network(), begins)
    assert torch.equal(support, again)
    for found in (query, other, repeated):  # a second `begin` of the same part: other inputs
        assert not torch.equal(support, found)
    assert not torch.equal(other, repeated)


def test_every_pass_has_new_masks_without_begin_and_they_are_a_function_of_seed_and_step():
    found = []
    for seed, steps in ((0, 0), (0, 0), (1, 0), (0, 1)):
        isi, encoder = ISI(seed=seed), network()
        isi.load_state_dict({"steps": steps})
        with attached(isi, encoder) as zeros:
            encoder(images())
            encoder(images())
        assert not torch.equal(*zeros)
        found.append(torch.stack(zeros))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[3])


def test_masks_fit_batches_of_every_size():
    isi, encoder = ISI(), network()
    with attached(isi, encoder) as zeros:
        begin(isi)
        for count in (6, 2, 6, 0, 1):
            encoder(images(count))
    assert [len(found) for found in zeros] == [6, 2, 6, 0, 1]
    assert torch.equal(zeros[0], zeros[2])


def test_a_layer_that_is_called_twice_in_a_pass_has_two_masks_which_are_kept():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x):
            return self.conv(self.conv(x))

    isi, encoder, zeros = ISI(layers="conv"), Twice(), []
    isi.attach(encoder)
    encoder.conv.register_forward_hook(lambda m, a, output: zeros.append(output == 0))
    begin(isi)
    for _ in range(2):
        encoder(x=images())
    assert not torch.equal(zeros[0], zeros[1])
    assert torch.equal(torch.stack(zeros[:2]), torch.stack(zeros[2:]))
    assert set(isi.maps(encoder, images())) == {"conv", "conv#2"}


def test_nothing_is_dropped_in_evaluation_nor_after_until():
    isi, encoder, x = ISI(until=1), network(), images()
    plain = encoder(x)
    with attached(isi, encoder):
        assert not torch.equal(encoder(x), plain)
        assert torch.equal(encoder.eval()(x), plain)
        encoder.train()
        gradhomog.pipeline([isi]).combine(torch.ones(2, 3))
        assert torch.equal(encoder(x), plain)


def dropped_layers(encoder, isi, x):
    with attached(isi, encoder):
        encoder(x)
    return {name.removeprefix("drop_rate.") for name in isi.measured(None)} - {"drop_rate"}


@pytest.mark.parametrize(
    ("layers", "found"), [(1, {"0"}), (9, {"0", "3"}), ("*", {"0", "2", "3", "5"}), (["[03]", "5"], {"0", "3", "5"})]
)
def test_layers_are_counted_named_or_matched(layers, found):
    assert dropped_layers(network(), ISI(layers=layers), images()) == found


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_inputs_have_one_to_three_dimensions(dims):
    conv, pool = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1], (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[dims - 1]
    encoder = nn.Sequential(conv(2, 4, 3, padding="same", dilation=2), nn.ReLU(), pool(2), conv(4, 4, 2, stride=2))
    x = torch.randn(3, 2, *[9] * dims)
    assert dropped_layers(encoder, ISI(layers="*", radius=1), x) == {"0", "2", "3"}
    maps = ISI(layers="*", radius=1).maps(encoder, x)
    assert [tuple(maps[name].shape[1:]) for name in ("0", "2", "3")] == [(9,) * dims, (4,) * dims, (2,) * dims]


def test_a_pooling_drops_by_the_most_informative_patch_of_each_window():
    encoder = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True))
    both = ISI(layers="*", temperature=1.0, rate=0.1).maps(encoder, images(size=10))
    share = (1 - both["0"]).log() / math.log(0.9)  # S, up to a factor, at temperature 1
    least = -nn.MaxPool2d(3, 2, ceil_mode=True)(-share[:, None])[:, 0]
    expected = 1 - 0.9 ** (least / least.flatten(1).mean(1)[:, None, None])
    torch.testing.assert_close(both["2"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("layers", "message"),
    [("conv*", r"'conv\*' matches none of 0 \(Conv2d\), 2 \(MaxPool2d\)"), (["0", "1"], r"'1' matches none of 0")],
)
def test_layers_that_do_not_exist_or_have_no_patches_raise(layers, message):
    with pytest.raises(OptionError, match=message):
        ISI(layers=layers).attach(network())


def test_a_pooling_that_follows_no_convolution_raises():
    encoder = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(1, 1, 3))
    ISI(layers="0").attach(encoder)
    with pytest.raises(OptionError, match="'0' in `layers` must pool the output of a convolution"):
        encoder(images())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_output_keeps_its_dtype(dtype):
    layer = nn.Conv2d(1, 4, 3, padding=1).to(dtype)
    ISI(layers=1, rate=0.3).attach(layer)
    output = layer(images().to(dtype))
    assert output.dtype == dtype
    assert torch.isfinite(output).all()
    assert 0.2 < float((output == 0).double().mean()) < 0.4


def test_under_autocast_masks_are_kept_and_keep_the_low_precision():
    isi, encoder, x = ISI(), network(), images()
    with attached(isi, encoder) as zeros:
        begin(isi)
        with torch.autocast("cpu", torch.bfloat16):
            assert encoder[0](x).dtype == torch.bfloat16
            encoder(x).sum().backward()
        encoder(x)
    assert torch.equal(zeros[1], zeros[2])


def test_nonfinite_values_stay_nonfinite_and_change_no_others():
    for sampling in ("bernoulli", "multinomial"):
        layer, x = nn.Conv2d(1, 4, 3, padding=1), images()
        ISI(layers=1, sampling=sampling).attach(layer)
        x[1], x[2, 0, 0, 0] = math.nan, math.inf
        output = layer(x)
        assert torch.isnan(output[1]).all()
        assert not torch.isfinite(output[2]).all()
        assert torch.isfinite(output[3:]).all()


def test_the_shares_dropped_in_a_step_are_reported():
    model = learner("isi(temperature=inf, rate=0.25)")
    report = model.step(tasks(), torch.optim.SGD(model.parameters(), lr=0.1))
    found = report.measured["isi"]
    assert set(found) == {"drop_rate", "drop_rate.0", "drop_rate.3"}
    assert found["drop_rate"] == pytest.approx((found["drop_rate.0"] + found["drop_rate.3"]) / 2)
    assert found["drop_rate"] == pytest.approx(0.25, abs=0.02)
    again = model.homogenizers.homogenize(torch.ones(2, 3), torch.ones(2), domains=["a", "b"])
    assert not again.measured.get("isi")  # nothing was dropped for this step


def test_maps_are_the_probabilities_and_change_nothing_attached_or_not():
    encoder = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Conv2d(3, 2, 3))
    isi = ISI(neighbours=7)
    buffers, noise = copy.deepcopy(encoder.state_dict()), torch.get_rng_state()
    alone = isi.maps(encoder, images())
    assert {name: tuple(found.shape) for name, found in alone.items()} == {"0": (6, 8, 8), "3": (6, 6, 6)}
    torch.set_rng_state(noise)
    with attached(isi, encoder):
        begin(isi)
        within = isi.maps(encoder, images())
    for name in alone:
        assert torch.equal(alone[name], within[name])
    assert isi.state_dict() == {"steps": 0}
    assert torch.equal(torch.get_rng_state(), noise)
    assert all(torch.equal(value, buffers[name]) for name, value in encoder.state_dict().items())
    assert isi.measured(None) == {}


def test_under_vmap_every_task_has_separate_masks_and_the_rows_of_a_single_task():
    class Noted(ISI):
        noted, task = (), None

        def _draw(self, call, generator, inputs):
            if self.task is not None:  # a single task, with the masks that it had in the batch
                return self.noted[call.name == "3"].unflatten(0, (3, 6))[self.task]
            self.noted += (super()._draw(call, generator, inputs),)
            return self.noted[-1]

    def loss(values, inputs):
        return torch.func.functional_call(encoder, values, (inputs,)).square().mean()

    def adapted_loss(values, inputs):
        adapted = values
        for _ in range(2):
            gradient = torch.func.grad(loss)(adapted, inputs)
            adapted = {name: value - 0.1 * gradient[name] for name, value in adapted.items()}
        return loss(adapted, inputs)

    isi, encoder = Noted(rate=0.3), network()
    parameters = {name: p.detach() for name, p in encoder.named_parameters()}
    x = torch.stack([images(seed=seed) for seed in range(3)])
    row = torch.func.grad(adapted_loss)
    isi.attach(encoder)
    begin(isi)
    rows = torch.func.vmap(row, in_dims=(None, 0))(parameters, x)
    assert len(isi.noted) == 2  # two layers; independent of the number of passes
    assert not torch.equal(isi.noted[0][:6], isi.noted[0][6:12])
    for task in range(3):
        isi.task = task
        begin(isi)
        for name, alone in row(parameters, x[task]).items():
            torch.testing.assert_close(rows[name][task], alone, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # PyTorch 2.13's own forward mode
def test_forward_mode_derivatives_pass_through_the_masks():
    isi, encoder, x = ISI(layers=1), network().double(), images().double()
    parameters = {name: p.detach() for name, p in encoder.named_parameters()}
    isi.attach(encoder)
    begin(isi, part="query")

    def loss(values):
        return torch.func.functional_call(encoder, values, (x,)).square().sum()

    forward = torch.func.jvp(loss, (parameters,), (parameters,))[1]
    reverse = sum((g * parameters[name]).sum() for name, g in torch.func.grad(loss)(parameters).items())
    torch.testing.assert_close(forward, reverse)
