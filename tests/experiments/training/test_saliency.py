"""SmoothGrad against closed forms, and saliency maps of learners, which do not change the learner."""

import copy

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import Homogenizer, Learner, Task, TaskRow
from gradhomog.experiments.episodes.sampler import EpisodeStream
from gradhomog.experiments.results.artifacts import SaliencyMaps
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.saliency import (
    compute_saliency_maps,
    smooth_grad,
    true_class_output,
    write_saliency_maps,
)
from gradhomog_adapters.maml import MAML
from tests.experiments.run_helpers import trainer


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def task(seed=0, size=6, dtype=torch.float32, domain="a"):
    draw = lambda count: torch.rand(count, 1, size, size, generator=generator(seed), dtype=dtype) * 2 - 1  # noqa: E731
    return Task(draw(3), torch.arange(3), draw(6).flip(0), torch.arange(6) % 3, domain)


def network(size=6, dtype=torch.float32):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten())
    return encoder.to(dtype), nn.Linear(4 * size * size, 3).to(dtype)


class HomogenizerWithMaps(Homogenizer):
    """Draws random numbers in training; has a spatial map of each input, and one that is not spatial."""

    def __init__(self, shift=0.0):
        self.generator, self.draws, self.shift = generator(), 0, shift

    def begin(self, key, part, generator):
        self.generator = generator

    def attach(self, encoder):
        return encoder.register_forward_hook(lambda module, args, output: output * self._draw())

    def maps(self, encoder, inputs):
        return {"layer 1": inputs.mean(1)[:, ::2, ::2] + self.shift, "head": inputs.flatten(1).mean(1)}

    def _draw(self):
        self.draws += 1
        return torch.rand(1, generator=self.generator)


@pytest.mark.parametrize("noise", [0.0, 0.1, 3.0])
def test_the_saliency_of_a_linear_network_is_its_row_of_weights(noise):
    layer, x = nn.Linear(12, 3).double(), torch.randn(3, 2, 2, generator=generator(), dtype=torch.float64)
    saliency = smooth_grad(lambda x: layer(x.flatten())[1], x, generator(), noise=noise)
    torch.testing.assert_close(saliency, layer.weight[1].detach().view(3, 2, 2), rtol=1e-14, atol=0)


def test_smoothgrad_of_a_kink_matches_the_closed_form():
    # f = |x|: E f'(x + δ) = 2 Φ(x/σ) − 1, where the gradient itself is 1.
    x = torch.tensor([0.1, -0.9], dtype=torch.float64)  # a range of 1: σ = 0.1
    saliency = smooth_grad(lambda x: x.abs().sum(), x, generator(), 4000, 0.1)
    assert saliency[0] == pytest.approx(0.6827, abs=0.05)
    assert saliency[1] == pytest.approx(-1)


@pytest.mark.parametrize("norm", ["batch", "support", "frozen"])
@pytest.mark.parametrize("name", ["maml", "fomaml"])
def test_the_gradient_wrt_a_query_matches_finite_differences_of_the_adapted_network(name, norm):
    learner = gradhomog.learner(name, *network(dtype=torch.float64), inner_lr=0.1, inner_steps=2, norm=norm)
    example = task(dtype=torch.float64)
    with learner.mode(training=False):
        saliency = smooth_grad(true_class_output(learner, example), example.query_x[0], generator(), 1, 0.0)

    def predicted(image):
        queries = torch.cat([image[None], example.query_x[1:]])
        return float(learner.predict(example.support_x, example.support_y, queries)[0, example.query_y[0]])

    for row, column in [(0, 0), (2, 3), (5, 5)]:
        step = torch.zeros_like(example.query_x[0])
        step[0, row, column] = 1e-5
        difference = (predicted(example.query_x[0] + step) - predicted(example.query_x[0] - step)) / 2e-5
        assert float(saliency[0, row, column]) == pytest.approx(difference, rel=1e-6, abs=1e-9)


def test_computing_saliency_does_not_change_learner_homogenizers_or_global_generator():
    homogenizer = HomogenizerWithMaps()
    learner = MAML(*network(), [homogenizer], inner_steps=2)
    learner.rows([task(), task(1)])  # the homogenizer draws random numbers
    drawn = homogenizer.draws, homogenizer.generator.get_state().tolist()
    before, random = copy.deepcopy(learner.state_dict()), torch.get_rng_state()
    modes = [module.training for module in learner.encoder.modules()]
    first, second = (compute_saliency_maps(learner, [task(), task(1)]) for _ in range(2))
    assert str(learner.state_dict()) == str(before)
    assert (homogenizer.draws, homogenizer.generator.get_state().tolist()) == drawn
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in learner.encoder.modules()] == modes
    assert all(parameter.grad is None for parameter in learner.parameters())
    assert (first.saliency == second.saliency).all()


def test_saliency_is_of_the_first_query_of_each_task():
    tasks = [task(), task(1, domain="b")]
    result = compute_saliency_maps(MAML(*network(), [HomogenizerWithMaps(), HomogenizerWithMaps(1.0)]), tasks)
    assert result.domains == ("a", "b")
    assert (result.images == torch.stack([each.query_x[0] for each in tasks]).numpy()).all()
    assert result.saliency.shape == result.images.shape
    first, second = result.maps.items()  # maps that are not spatial are omitted
    assert first[0] == "HomogenizerWithMaps: layer 1"
    assert second[0] == "HomogenizerWithMaps#2: layer 1"
    assert (first[1] == result.images[:, 0, ::2, ::2]).all()
    assert (second[1] == result.images[:, 0, ::2, ::2] + 1).all()


def test_the_probability_is_that_of_the_true_class():
    learner, example = MAML(*network()), task()
    outputs = learner.predict(example.support_x, example.support_y, example.query_x)
    expected = outputs[0].softmax(0)[example.query_y[0]]
    assert compute_saliency_maps(learner, [example]).probabilities[0] == pytest.approx(float(expected))


class WithoutInputGradients(Learner):
    """A third-party learner whose outputs are detached from the autograd graph."""

    def task_row(self, task, key):
        return TaskRow(torch.tensor(0.0), {}, torch.zeros(6, 3))

    def adapted_outputs(self, support_x, support_y, query_x):
        with torch.no_grad():
            return self.head(self.encoder(query_x))


def test_a_learner_without_input_gradients_has_maps_but_no_saliency():
    result = compute_saliency_maps(WithoutInputGradients(*network(), [HomogenizerWithMaps()]), [task()])
    assert result.saliency is None
    assert list(result.maps) == ["HomogenizerWithMaps: layer 1"]


def glyphs(**options):
    shape = {"ways": 3, "shots": 1, "queries": 2, "tasks": 1, "setting": "strong", "seed": 0, "split": "all"}
    return EpisodeStream([gradhomog.domain("glyphs:arrows", size=16)], **shape, **options)


def test_an_error_of_the_learner_is_printed_and_not_raised(tmp_path, capsys):
    class Broken(WithoutInputGradients):
        def adapted_outputs(self, support_x, support_y, query_x):
            raise RuntimeError("cannot adapt")

    write_saliency_maps(Broken(*network(16)), glyphs(), "cpu", tmp_path)
    assert "no saliency maps: RuntimeError: cannot adapt" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_vector_inputs_have_no_saliency_maps(small, tmp_path):
    trainer(small, Run("maml", "none", 0), tmp_path).train_and_test()
    assert not (tmp_path / SaliencyMaps.FILE).exists()
