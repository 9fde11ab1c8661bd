"""ISI in an encoder and in learners: where and when it drops, what it holds fixed, and what it leaves alone."""

from __future__ import annotations

import contextlib
import copy
import io
import math

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import OptionError, Task, TaskKey
from gradhomog_plugins.isi import ISI

KEY, OTHER = TaskKey(0, "a"), TaskKey(1, "b")


def network(seed=0, channels=1):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip


def images(count=6, seed=0, size=8):
    return torch.randn(count, 1, size, size, generator=torch.Generator().manual_seed(seed))


@contextlib.contextmanager
def attached(isi, encoder):
    """The zeros of the layer `0` (or of another), pass by pass."""
    zeros = []
    handles = [*isi.attach(encoder), encoder[0].register_forward_hook(lambda m, a, output: zeros.append(output == 0))]
    try:
        yield zeros
    finally:
        for handle in handles:
            handle.remove()


def tasks(count=2, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.randn(n, 1, 8, 8, generator=generator, dtype=dtype)  # noqa: E731
    return [Task(draw(4), torch.arange(4) % 2, draw(6), torch.arange(6) % 2, f"domain {i}") for i in range(count)]


def learner(homogenizers, dtype=torch.float32, **options):
    encoder = network().to(dtype)
    return gradhomog.learner(
        "maml", encoder, nn.Linear(16, 2, dtype=dtype), homogenizers=homogenizers, inner_lr=0.1, **options
    )


# -- when masks are drawn ---------------------------------------------------------------------------------------------


def test_a_task_keeps_its_masks_through_all_passes_and_another_gets_new_ones():
    isi, encoder, x = ISI(), network(), images()
    with attached(isi, encoder) as zeros:
        for key, part in ((KEY, "support"), (KEY, "query"), (KEY, "support"), (OTHER, "support"), (OTHER, "support")):
            isi.begin(key, part)
            encoder(x)
            encoder(x)
    for first, second in zip(zeros[::2], zeros[1::2], strict=True):
        assert torch.equal(first, second)
    support, query, again, other, repeated = zeros[::2]
    assert torch.equal(support, again)
    for found in (query, other, repeated):
        assert not torch.equal(support, found)
    assert not torch.equal(other, repeated)


def test_every_pass_has_new_masks_where_nobody_says_what_the_inputs_are():
    isi, encoder, x = ISI(), network(), images()
    with attached(isi, encoder) as zeros:
        encoder(x)
        encoder(x)
    assert not torch.equal(*zeros)
    assert not isi._held


def test_masks_fit_batches_of_every_size():
    isi, encoder = ISI(), network()
    with attached(isi, encoder) as zeros:
        isi.begin(KEY, "support")
        for count in (6, 2, 6, 0, 1):
            encoder(images(count))
    assert [len(found) for found in zeros] == [6, 2, 6, 0, 1]
    assert torch.equal(zeros[0], zeros[2])


def test_a_layer_that_runs_twice_in_a_pass_has_two_masks_which_are_held():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 1, 3, padding=1)

        def forward(self, x):
            return self.conv(self.conv(x))

    isi, encoder, zeros = ISI(layers="conv"), Twice(), []
    isi.attach(encoder)
    encoder.conv.register_forward_hook(lambda m, a, output: zeros.append(output == 0))
    isi.begin(KEY, "support")
    for _ in range(2):
        encoder(x=images())
    assert not torch.equal(zeros[0], zeros[1])
    assert torch.equal(torch.stack(zeros[:2]), torch.stack(zeros[2:]))
    assert set(isi.maps(encoder, images())) == {"conv", "conv#2"}


@pytest.mark.parametrize(("parts", "dropping"), [("support", [True, False]), ("query", [False, True])])
def test_only_the_parts_asked_for_are_dropped(parts, dropping):
    isi, encoder = ISI(parts=parts), network()
    with attached(isi, encoder) as zeros:
        for part in ("support", "query"):
            isi.begin(KEY, part)
            encoder(images())
    assert [bool(found.any()) for found in zeros] == dropping


def test_nothing_is_dropped_in_evaluation_nor_after_detaching_nor_after_until():
    isi, encoder, x = ISI(until=1), network(), images()
    plain = encoder(x)
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in encoder.modules()]
    with attached(isi, encoder):
        assert not torch.equal(encoder(x), plain)
        assert torch.equal(encoder.eval()(x), plain)
        encoder.train()
        gradhomog.pipeline([isi]).combine(torch.ones(2, 3))
        assert torch.equal(encoder(x), plain)
    isi.steps = 0
    assert torch.equal(encoder(x), plain)
    assert hooks == [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in encoder.modules()]
    assert not isi._held


def test_meta_test_is_that_of_the_plain_learner():
    found = [learner(text).evaluate(tasks()).losses for text in ("none", "isi(rate=0.9)")]
    assert found[0] == found[1]


# -- which layers -----------------------------------------------------------------------------------------------------


def dropped_layers(encoder, isi, x):
    with attached(isi, encoder):
        encoder(x)
    return set(isi._drawn)


@pytest.mark.parametrize(
    ("layers", "found"),
    [
        (1, {"0"}),
        (2, {"0", "3"}),
        (9, {"0", "3"}),
        ("3", {"3"}),
        ("*", {"0", "2", "3", "5"}),
        (["[03]", "5"], {"0", "3", "5"}),
    ],
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
    [
        ("conv*", r"'conv\*' matches nothing. Those there are: 0 \(Conv2d\), 2 \(MaxPool2d\)"),
        (["0", "1"], r"'1' matches 1 \(Tanh\)"),
    ],
)
def test_layers_that_there_are_not_or_that_have_no_patches_are_refused(layers, message):
    with pytest.raises(OptionError, match=message):
        ISI(layers=layers).attach(network())


def test_an_encoder_without_convolutions_is_refused():
    with pytest.raises(OptionError, match=r"the encoder has none; its layers: .*0 \(Linear\).*leave isi out"):
        ISI().attach(nn.Sequential(nn.Linear(3, 3)))


def test_a_pooling_that_follows_no_convolution_is_refused():
    encoder = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(1, 1, 3))
    ISI(layers="0").attach(encoder)
    with pytest.raises(OptionError, match="'0' in `layers` must pool the output of a convolution"):
        encoder(images())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("isi(rate=1)", "`rate` must be at least 0 and below 1; got 1"),
        ("isi(temperature=-1)", "`temperature` must not be negative"),
        ("isi(bandwidth=0)", "`bandwidth` must be positive"),
        ("isi(bandwidth=inf)", "`bandwidth` must be positive and finite"),
        ("isi(radius=0)", "`radius` must be at least 1"),
        ("isi(neighbours=0)", "`neighbours` must be at least 1"),
        ("isi(until=-1)", "`until` must be at least 0"),
        ("isi(layers=0)", "`layers` must be at least 1"),
        ("isi(layers=[])", "`layers` must be at least 1, or name layers"),
        ("isi(sampling='gauss')", "`sampling` must be one of"),
        ("isi(parts='none')", "`parts` must be one of"),
    ],
)
def test_options_out_of_range_are_refused(text, message):
    with pytest.raises(OptionError, match=message):
        gradhomog.pipeline(text)


# -- derivatives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"layers": ["2", "3"], "sampling": "multinomial", "temperature": 2.0}])
def test_second_order_rows_are_the_derivative_of_the_loss_with_the_same_masks(options):
    class Replayed(ISI):
        """Masks of the first call of `rows` are those of all others, whatever the parameters are by then."""

        recorded, replay = (), ()

        def _draw(self, call, inputs):
            if self.replay:
                return self.replay.pop(0)
            self.recorded += (super()._draw(call, inputs),)
            return self.recorded[-1]

    isi = Replayed(rate=0.3, **options)
    model, batch = learner([isi], torch.float64, inner_steps=3), tasks(dtype=torch.float64)
    found = model.rows(batch).jacobian
    assert len(isi.recorded) == 8  # two layers, two tasks, support and query: however many inner steps
    generator = torch.Generator().manual_seed(1)
    direction = {
        name: torch.randn(p.shape, generator=generator, dtype=p.dtype) for name, p in model.named_parameters().items()
    }
    losses = []
    for step in (1e-6, -2e-6):  # ahead, then behind
        with torch.no_grad():
            for name, parameter in model.named_parameters().items():
                parameter += step * direction[name]
        isi.replay = list(isi.recorded)
        losses.append(model.rows(batch).losses)
    expected = (losses[0] - losses[1]) / 2e-6
    derivative = sum((rows * direction[name]).flatten(1).sum(1) for name, rows in found.items())
    torch.testing.assert_close(derivative, expected, rtol=1e-6, atol=1e-8)


def test_the_product_with_the_mask_is_all_that_is_in_the_graph():
    isi, encoder, x = ISI(layers=1), nn.Sequential(nn.Conv2d(1, 3, 3, padding=1)).double(), images().double()
    plain = encoder(x)
    isi.attach(encoder)
    isi.begin(KEY, "query")
    mask = (encoder(x) / plain).detach()
    x.requires_grad_()

    def loss(weight, inputs, masked):
        bias = encoder[0].bias.detach()
        if masked:
            return torch.func.functional_call(encoder, {"0.weight": weight, "0.bias": bias}, (inputs,)).pow(3).sum()
        return (nn.functional.conv2d(inputs, weight, bias, padding=1) * mask).pow(3).sum()

    weight = encoder[0].weight.detach().requires_grad_()
    derivatives = []
    for masked in (True, False):
        first = torch.autograd.grad(loss(weight, x, masked), (weight, x), create_graph=True)
        second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), (weight, x))
        derivatives.append((*first, *second))
    torch.testing.assert_close(*derivatives)


def test_under_vmap_every_task_has_masks_of_its_own_and_the_rows_that_it_has_alone():
    class Noted(ISI):
        noted, task = (), None

        def _draw(self, call, inputs):
            if self.task is not None:  # one task alone, with the masks that it had among the others
                return self.noted[call.name == "3"].unflatten(0, (3, 6))[self.task]
            self.noted += (super()._draw(call, inputs),)
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
    isi.begin(KEY, "support")
    rows = torch.func.vmap(row, in_dims=(None, 0))(parameters, x)
    assert len(isi.noted) == 2  # two layers, however many passes
    assert not torch.equal(isi.noted[0][:6], isi.noted[0][6:12])
    for task in range(3):
        isi.task = task
        isi.begin(KEY, "support")
        for name, alone in row(parameters, x[task]).items():
            torch.testing.assert_close(rows[name][task], alone, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # PyTorch 2.13's own forward mode
def test_forward_mode_derivatives_pass_through_the_masks():
    isi, encoder, x = ISI(layers=1), network().double(), images().double()
    parameters = {name: p.detach() for name, p in encoder.named_parameters()}
    isi.attach(encoder)
    isi.begin(KEY, "query")

    def loss(values):
        return torch.func.functional_call(encoder, values, (x,)).square().sum()

    forward = torch.func.jvp(loss, (parameters,), (parameters,))[1]
    reverse = sum((g * parameters[name]).sum() for name, g in torch.func.grad(loss)(parameters).items())
    torch.testing.assert_close(forward, reverse)


def test_vmapped_outputs_are_those_of_one_larger_batch():
    isi, encoder, x = ISI(), network(), torch.stack([images(seed=seed) for seed in range(3)])
    state = isi.state_dict()
    isi.attach(encoder)
    together = encoder(x.flatten(0, 1)).unflatten(0, (3, 6))
    isi.load_state_dict(state)
    parameters = {name: p.detach() for name, p in encoder.named_parameters()}
    mapped = torch.func.vmap(lambda inputs: torch.func.functional_call(encoder, parameters, (inputs,)))(x)
    torch.testing.assert_close(mapped, together)


# -- precisions, state, other people's things -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_output_has_the_dtype_that_it_had(dtype):
    layer = nn.Conv2d(1, 4, 3, padding=1).to(dtype)
    ISI(layers=1, rate=0.3).attach(layer)
    output = layer(images().to(dtype))
    assert output.dtype == dtype
    assert torch.isfinite(output).all()
    assert 0.2 < float((output == 0).double().mean()) < 0.4


def test_under_autocast_masks_are_held_and_keep_the_low_precision():
    isi, encoder, x = ISI(), network(), images()
    with attached(isi, encoder) as zeros:
        isi.begin(KEY, "support")
        with torch.autocast("cpu", torch.bfloat16):
            assert encoder[0](x).dtype == torch.bfloat16
            encoder(x).sum().backward()
        encoder(x)
    assert torch.equal(zeros[1], zeros[2])


def test_what_is_not_finite_stays_so_and_breaks_nothing():
    for sampling in ("bernoulli", "multinomial"):
        layer, x = nn.Conv2d(1, 4, 3, padding=1), images()
        ISI(layers=1, sampling=sampling).attach(layer)
        x[1], x[2, 0, 0, 0] = math.nan, math.inf
        output = layer(x)
        assert torch.isnan(output[1]).all()
        assert not torch.isfinite(output[2]).all()
        assert torch.isfinite(output[3:]).all()


def test_training_goes_on_bit_for_bit_from_a_saved_state():
    text = "isi(neighbours=9, sampling='multinomial', rate=0.3, until=3)"
    first = learner(text)
    outer = torch.optim.SGD(first.parameters(), lr=0.1)
    first.step(tasks(seed=0), outer)
    saved = io.BytesIO()
    torch.save(first.state_dict(), saved)
    saved.seek(0)
    second = learner(text)
    second.load_state_dict(torch.load(saved, weights_only=True))
    for model in (first, second):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for seed in (1, 2, 3):
            model.step(tasks(seed=seed), optimizer)
    for mine, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_seed_decides_the_masks():
    losses = [learner(f"isi(seed={seed}, rate=0.5)").rows(tasks()).losses for seed in (0, 0, 1)]
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], losses[2])


def test_the_global_generator_and_the_modules_attributes_are_left_alone():
    model = learner("isi(neighbours=5)")
    before, attributes = torch.get_rng_state(), [set(vars(m)) for m in model.encoder.modules()]
    model.step(tasks(), torch.optim.SGD(model.parameters(), lr=0.1))
    assert torch.equal(torch.get_rng_state(), before)
    assert attributes == [set(vars(m)) for m in model.encoder.modules()]


def test_what_was_dropped_in_the_last_step_is_measured():
    model = learner("isi(temperature=inf, rate=0.25)")
    report = model.step(tasks(), torch.optim.SGD(model.parameters(), lr=0.1))
    found = report.measured["isi"]
    assert set(found) == {"drop_rate", "drop_rate.0", "drop_rate.3"}
    assert found["drop_rate"] == pytest.approx((found["drop_rate.0"] + found["drop_rate.3"]) / 2)
    assert found["drop_rate"] == pytest.approx(0.25, abs=0.02)
    assert "isi" not in gradhomog.pipeline("isi").homogenize(torch.ones(2, 3)).measured


def test_maps_show_the_probabilities_and_change_nothing_attached_or_not():
    encoder = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Conv2d(3, 2, 3))
    isi = ISI(neighbours=7)
    before, buffers, noise = isi.state_dict(), copy.deepcopy(encoder.state_dict()), torch.get_rng_state()
    alone = isi.maps(encoder, images())
    assert {name: tuple(found.shape) for name, found in alone.items()} == {"0": (6, 8, 8), "3": (6, 6, 6)}
    torch.set_rng_state(noise)
    with attached(isi, encoder):
        isi.begin(KEY, "support")
        within = isi.maps(encoder, images())
        assert not isi._held
    for name in alone:
        assert torch.equal(alone[name], within[name])
    assert torch.equal(isi.state_dict()["generator"], before["generator"])
    assert torch.equal(torch.get_rng_state(), noise)
    assert all(torch.equal(value, buffers[name]) for name, value in encoder.state_dict().items())
    assert isi.measured() == {}


@pytest.mark.parametrize("kind", ["fomaml", "maml"])
def test_learners_train_with_it_in_a_pipeline(kind):
    encoder = network()
    model = gradhomog.learner(kind, encoder, nn.Linear(16, 2), homogenizers="isi + pcgrad", norm="support")
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = model.step(tasks(), outer)
    assert torch.isfinite(report.losses).all()
    assert [stage.name for stage in model.probe(tasks())] == ["plain", "isi", "pcgrad"]
