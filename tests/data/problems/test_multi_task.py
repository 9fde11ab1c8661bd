"""A network of several tasks: plain and single-task training equal hand-written loops."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradhomog.experiments.run_file import content
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.multi_task import batch_indices
from gradhomog.experiments.training.trainer import make_trainable
from tests.data.problems.conftest import data_of


def run(text, label=""):
    return Run("glyph_pairs", label or text, 0)


SINGLE_TASK = run("none", "single-task")


def run_steps(config, of, steps=4):
    """The network of a run after some steps, and the reports of the steps."""
    network = make_trainable(config, of)
    outer = torch.optim.SGD(network.parameters(), lr=0.1)  # Adam would step on the rounding of gradients that are zero
    reports = [network.step(index, outer, inspect=True) for index in range(steps)]
    return network, reports


def loop(config, shared, steps=4):
    """The textbook loop: shared parameters minimize the mean of the losses, and each head minimizes its loss."""
    train = data_of(config).train
    torch.manual_seed(0)
    parts = [content.build_network("conv4", (1, 16, 16), 3, config.network.width) for _ in range(2)]
    encoders = [parts[0][0]] * 2 if shared else [encoder for encoder, _ in parts]
    heads = [head for _, head in parts]
    body = list(encoders[0].parameters()) if shared else [p for encoder in encoders for p in encoder.parameters()]
    outer = torch.optim.SGD([*body, *(p for head in heads for p in head.parameters())], lr=0.1)
    for index in range(steps):
        chosen = batch_indices(len(train.inputs), config.problem["batch"], 0, index)
        features = [encoders[0](train.inputs[chosen])] * 2 if shared else [e(train.inputs[chosen]) for e in encoders]
        losses = [cross_entropy(head(z), y[chosen]) for head, z, y in zip(heads, features, train.targets, strict=True)]
        outer.zero_grad()
        sum(losses).backward()
        if shared:
            for parameter in body:
                parameter.grad /= 2
        outer.step()
    return encoders if not shared else encoders[:1], heads


@pytest.mark.parametrize(("of", "shared"), [(run("none"), True), (SINGLE_TASK, False)])
def test_training_without_homogenizers_is_the_hand_written_loop(pairs, of, shared):
    network, _ = run_steps(pairs, of)
    encoders, heads = loop(pairs, shared)
    for actual, expected in ((network.encoders, encoders), (network.heads, heads)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            for name, value in other.state_dict().items():
                torch.testing.assert_close(one.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_every_method_has_the_same_initial_network_and_the_same_batches(pairs):
    first = [run_steps(pairs, of, steps=1)[1][0] for of in (run("none"), run("mgda"), run("rotograd"), SINGLE_TASK)]
    for report in (first[1], first[3]):  # the initial rotation of rotograd is not the identity
        torch.testing.assert_close(report.losses[0], first[0].losses[0])
    torch.testing.assert_close(first[1].losses, first[0].losses)
    torch.testing.assert_close(first[1].norms, first[0].norms)
    assert first[0].names == ("left", "right")


def test_single_task_training_has_a_separate_network_for_each_task(pairs):
    network, reports = run_steps(pairs, SINGLE_TASK, steps=1)
    assert len(network.encoders) == 2
    assert reports[0].cosines.diagonal().tolist() == [1, 1]
    assert reports[0].cosines[0, 1].isnan()  # rows of different parameters have no cosine


@pytest.mark.parametrize("text", ['static(weights={"left": 1, "right": 3})', "gradnorm", "isi"])
def test_homogenizers_receive_the_names_of_tasks_and_act_within_the_encoder(pairs, text):
    network, reports = run_steps(pairs, run(text), steps=2)
    assert all(p.isfinite().all() for p in network.parameters())
    if text.startswith("static"):
        assert reports[0].weights.tolist() == [0.5, 1.5]


def test_scores_are_accuracies_without_homogenizers(pairs):
    network, _ = run_steps(pairs, run("isi"), steps=1)
    split = data_of(pairs).test
    result = network.test([])
    with torch.no_grad():
        right = [
            (head(network.encoders[0](split.inputs)).argmax(1) == y).double().mean().item()
            for head, y in zip(network.heads, split.targets, strict=True)
        ]
    assert result.scores == right
    assert result.domains == ["left", "right"]
    assert result.metric == "accuracy"
