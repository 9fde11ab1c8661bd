"""SmoothGrad against closed forms, and looking at a trained learner, which changes nothing of it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import gradhomog
from gradhomog import Homogenizer, Learner, Task, TaskRow
from gradhomog.experiments.config.schema import load
from gradhomog.experiments.data.sampler import EpisodeStream
from gradhomog.experiments.results.plan import Run
from gradhomog.experiments.results.saliency_maps import FILE, Looks
from gradhomog.experiments.training.saliency import look_at, smooth_grad, true_output, write_looks
from gradhomog_adapters.maml import MAML
from tests.experiments.running import trainer


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # of small networks, more threads only wait for each other
    yield
    torch.set_num_threads(before)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def task(seed=0, size=6, dtype=torch.float32, domain="a"):
    draw = lambda count: torch.rand(count, 1, size, size, generator=generator(seed), dtype=dtype) * 2 - 1  # noqa: E731
    return Task(draw(3), torch.arange(3), draw(6).flip(0), torch.arange(6) % 3, domain)


def network(size=6, dtype=torch.float32):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten())
    return encoder.to(dtype), nn.Linear(4 * size * size, 3).to(dtype)


class Mapped(Homogenizer):
    """Draws in training, and has a map of each input, and one that has no place."""

    def __init__(self, shift=0.0):
        self.generator, self.seen, self.shift = generator(), 0, shift

    def begin(self, key, part, generator):
        self.generator = generator

    def attach(self, encoder):
        return encoder.register_forward_hook(lambda module, args, output: output * self._draw())

    def maps(self, encoder, inputs):
        return {"layer 1": inputs.mean(1)[:, ::2, ::2] + self.shift, "head": inputs.flatten(1).mean(1)}

    def _draw(self):
        self.seen += 1
        return torch.rand(1, generator=self.generator)


@pytest.mark.parametrize("noise", [0.0, 0.1, 3.0])
def test_the_saliency_of_a_linear_network_is_its_row_of_weights(noise):
    layer, x = nn.Linear(12, 3).double(), torch.randn(3, 2, 2, generator=generator(), dtype=torch.float64)
    found = smooth_grad(lambda x: layer(x.flatten())[1], x, generator(), noise=noise)
    torch.testing.assert_close(found, layer.weight[1].detach().view(3, 2, 2), rtol=1e-14, atol=0)


@pytest.mark.slow
def test_the_saliency_of_a_quadratic_form_is_its_gradient_up_to_the_mean_of_the_noise():
    matrix = torch.randn(5, 5, generator=generator(1), dtype=torch.float64)
    matrix = matrix + matrix.T
    x = torch.randn(5, generator=generator(2), dtype=torch.float64)
    samples, sigma = 4000, 0.1 * (x.max() - x.min())
    found = smooth_grad(lambda x: x @ matrix @ x / 2, x, generator(), samples, 0.1)
    # S = A(x + mean δ), and the mean of n δ ~ N(0, σ²) is N(0, σ²/n).
    spread = sigma / samples**0.5 * torch.linalg.vector_norm(matrix, dim=1)
    assert ((found - matrix @ x).abs() < 4 * spread).all()
    assert not torch.equal(found, matrix @ x)


def test_noise_smooths_a_kink_as_the_closed_form_says():
    # f = |x|: E f'(x + δ) = 2 Φ(x/σ) − 1, where the gradient itself is 1.
    x = torch.tensor([0.1, -0.9], dtype=torch.float64)  # a range of 1: σ = 0.1
    found = smooth_grad(lambda x: x.abs().sum(), x, generator(), 4000, 0.1)
    assert found[0] == pytest.approx(0.6827, abs=0.05)
    assert found[1] == pytest.approx(-1)


def test_a_score_that_does_not_depend_on_its_input_has_no_saliency():
    x, weight = torch.ones(3), torch.ones(3, requires_grad=True)
    assert smooth_grad(lambda x: torch.tensor(1.0), x, generator()) is None
    assert smooth_grad(lambda x: weight.sum(), x, generator()) is None
    assert smooth_grad(lambda x: (x.detach() * weight).sum(), x, generator()) is None


def test_saliency_works_within_no_grad_and_leaves_its_input_and_global_numbers_alone():
    x = torch.arange(3.0)
    before = torch.get_rng_state()
    with torch.no_grad():
        assert smooth_grad(lambda x: (x * x).sum(), x, generator(), noise=0.0).tolist() == [0, 2, 4]
    assert not x.requires_grad
    assert x.grad is None
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("norm", ["batch", "support", "frozen"])
@pytest.mark.parametrize("name", ["maml", "fomaml"])
def test_the_derivative_by_a_query_is_that_of_the_adapted_networks_predictions(name, norm):
    learner = gradhomog.learner(name, *network(dtype=torch.float64), inner_lr=0.1, inner_steps=2, norm=norm)
    given = task(dtype=torch.float64)
    with learner.mode(training=False):
        found = smooth_grad(true_output(learner, given), given.query_x[0], generator(), 1, 0.0)

    def predicted(image):
        queries = torch.cat([image[None], given.query_x[1:]])
        return float(learner.predict(given.support_x, given.support_y, queries)[0, given.query_y[0]])

    for row, column in [(0, 0), (2, 3), (5, 5)]:
        step = torch.zeros_like(given.query_x[0])
        step[0, row, column] = 1e-5
        slope = (predicted(given.query_x[0] + step) - predicted(given.query_x[0] - step)) / 2e-5
        assert float(found[0, row, column]) == pytest.approx(slope, rel=1e-6, abs=1e-9)


def test_predictions_stay_outside_the_graph_unless_the_inputs_ask():
    learner, given = MAML(*network()), task()
    assert not learner.adapted_outputs(given.support_x, given.support_y, given.query_x).requires_grad
    asking = given.query_x.clone().requires_grad_()
    assert learner.adapted_outputs(given.support_x, given.support_y, asking).requires_grad
    with torch.no_grad():
        assert not learner.adapted_outputs(given.support_x, given.support_y, asking).requires_grad
    assert not learner.predict(given.support_x, given.support_y, asking).requires_grad


def test_looking_changes_nothing_of_the_learner_its_homogenizers_or_the_global_generator():
    mapped = Mapped()
    learner = MAML(*network(), [mapped], inner_steps=2)
    learner.rows([task(), task(1)])  # the homogenizer has drawn
    drawn = mapped.seen, mapped.generator.get_state().tolist()
    before, random = copy.deepcopy(learner.state_dict()), torch.get_rng_state()
    modes = [module.training for module in learner.encoder.modules()]
    one, two = (look_at(learner, [task(), task(1)]) for _ in range(2))
    assert str(learner.state_dict()) == str(before)
    assert (mapped.seen, mapped.generator.get_state().tolist()) == drawn
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in learner.encoder.modules()] == modes
    assert all(parameter.grad is None for parameter in learner.parameters())
    assert (one.saliency == two.saliency).all()


def test_what_is_looked_at_is_the_first_query_of_each_task():
    tasks = [task(), task(1, domain="b")]
    looks = look_at(MAML(*network(), [Mapped(), Mapped(1.0)]), tasks)
    assert looks.domains == ("a", "b")
    assert (looks.images == torch.stack([each.query_x[0] for each in tasks]).numpy()).all()
    assert looks.saliency.shape == looks.images.shape
    assert looks.attached
    first, second = looks.maps.items()  # what has no place in the image is left out
    assert first[0] == "Mapped: layer 1"
    assert second[0] == "Mapped#2: layer 1"
    assert (first[1] == looks.images[:, 0, ::2, ::2]).all()
    assert (second[1] == looks.images[:, 0, ::2, ::2] + 1).all()


def test_the_probability_is_that_of_the_true_class():
    learner, given = MAML(*network()), task()
    outputs = learner.predict(given.support_x, given.support_y, given.query_x)
    expected = outputs[0].softmax(0)[given.query_y[0]]
    assert look_at(learner, [given]).probabilities[0] == pytest.approx(float(expected))


class Closed(Learner):
    """A learner of somebody else's, whose outputs are outside the graph."""

    def task_row(self, task, key):
        return TaskRow(torch.tensor(0.0), {}, torch.zeros(6, 3))

    def adapted_outputs(self, support_x, support_y, query_x):
        with torch.no_grad():
            return self.head(self.encoder(query_x))


def test_of_a_learner_that_cannot_be_differentiated_only_maps_are_kept():
    looks = look_at(Closed(*network(), [Mapped()]), [task()])
    assert looks.saliency is None
    assert list(looks.maps) == ["Mapped: layer 1"]


def glyphs(**options):
    shape = {"ways": 3, "shots": 1, "queries": 2, "tasks": 1, "setting": "strong", "seed": 0, "split": "all"}
    return EpisodeStream([gradhomog.domain("glyphs:arrows", size=16)], **shape, **options)


def test_a_learner_that_fails_is_told_and_stops_nothing(tmp_path, capsys):
    class Broken(Closed):
        def adapted_outputs(self, support_x, support_y, query_x):
            raise RuntimeError("cannot adapt")

    write_looks(Broken(*network(16)), glyphs(), "cpu", tmp_path)
    assert "no saliency is drawn: RuntimeError: cannot adapt" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_maps_of_other_inputs_are_refused_by_name(tmp_path, capsys):
    class Short(Homogenizer):
        def maps(self, encoder, inputs):
            return {"m": torch.zeros(1, 2, 2)}

    write_looks(MAML(*network(16), [Short()]), glyphs(), "cpu", tmp_path)
    errors = capsys.readouterr().err
    assert "homogenizer Short must return from `maps` one map for each of 6 inputs, as tensors by name" in errors
    assert "got a dict of {'m': a tensor (1, 2, 2) torch.float32 on cpu}" in errors


def test_there_is_nothing_to_look_at_in_vectors(small, tmp_path):
    trainer(small, Run("maml", "none", 0), tmp_path).finish()
    assert not (tmp_path / FILE).exists()


@pytest.mark.slow
def test_a_run_on_images_leaves_looks_that_stopping_and_going_on_does_not_change(tmp_path):
    config = load(
        None,
        [
            'domains.train=["glyphs:arrows"]', 'domains.test=["glyphs:arrows"]', "network.size=16", "network.width=2",
            "episodes.ways=3", "episodes.queries=2", "episodes.tasks=2", "train.steps=4", "train.inner_steps=1",
            "train.validation_episodes=2", "test.episodes=2",
        ],
    )  # fmt: skip
    for folder, stops in (("whole", ()), ("parts", (1, 3))):
        for limit in (*stops, None):
            training = trainer(config, Run("maml", "pcgrad", 0), tmp_path / folder)
            training.finish(lambda t=training, n=limit: t.done == n)
    whole, parts = (Looks.read(tmp_path / folder) for folder in ("whole", "parts"))
    assert whole.images.shape == (6, 1, 16, 16)
    assert set(whole.domains) == {"glyphs:arrows"}
    assert (whole.saliency == parts.saliency).all()
    assert whole.saliency.any()
    assert (whole.probabilities == parts.probabilities).all()
    assert whole.maps == {}
