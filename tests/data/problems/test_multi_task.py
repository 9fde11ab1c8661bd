"""A network of several tasks: plain and single-task training equal hand-written loops."""

import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy

from gradhomog import DataError, Examples, MultiTaskData
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


def examples(count, *, classes=3, tasks=2, size=4):
    return Examples(torch.zeros(count, size), tuple(torch.arange(count) % classes for _ in range(tasks)))


DATA = MultiTaskData(("a", "b"), (3, 3), 4, examples(9), examples(6), examples(6))
NUMBERS = Examples(torch.zeros(9, 4), (torch.zeros(9, 1), torch.zeros(9, 1)))
REGRESSION = MultiTaskData(("a", "b"), (1, 1), 4, NUMBERS, NUMBERS, NUMBERS)


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        (DATA, {"tasks": ("a", "a")}, r"`tasks` must be different names.*got \('a', 'a'\), \(3, 3\) and 4"),
        (DATA, {"tasks": (), "outputs": ()}, "`tasks` must be different names"),
        (DATA, {"outputs": (3,)}, "one entry of `outputs` for each"),
        (DATA, {"batch": 0}, "`batch` at least 1; got"),
        (
            DATA,
            {"train": examples(9, tasks=1)},
            r"`train` must have .* targets of 2 tasks; got \[9, 4\] and targets of 1",
        ),
        (DATA, {"test": examples(0)}, r"`test` must have inputs \[n, \*\[4\]\] .*n at least 1.*got \[0, 4\]"),
        (DATA, {"test": examples(6, size=5)}, r"`test` must have inputs \[n, \*\[4\]\] as `train`.*got \[6, 5\]"),
        (DATA, {"test": examples(6, classes=4)}, r"`test`, task 'a': .* in 0\.\.2; got torch.int64 \[6\], 0 to 3"),
        (
            DATA,
            {"validation": examples(6)._replace(inputs=torch.zeros(5, 4))},
            r"`validation`, task 'a': .*int64 classes \[5\]",
        ),
        (DATA, {"train": NUMBERS}, r"`train`, task 'a': targets must be float32 \[9, 3\]; got torch.float32 \[9, 1\]"),
        (
            REGRESSION,
            {"test": NUMBERS._replace(targets=(torch.zeros(9), torch.zeros(9)))},
            r"float32 \[9, 1\]; got .*\[9\]",
        ),
        (
            REGRESSION,
            {"test": NUMBERS._replace(targets=(torch.zeros(9, 1).double(),) * 2)},
            "float32 .*; got torch.float64",
        ),
        (REGRESSION, {"test": examples(9, classes=1)}, r"float32 \[9, 1\]; got torch.int64 \[9\]"),
    ],
)
def test_data_that_do_not_fit_together_raise_with_split_and_task(data, changes, message):
    with pytest.raises(DataError, match=message):
        dataclasses.replace(data, **changes)


def test_the_fingerprint_depends_on_shapes_and_types():
    """All of these have the same bytes."""
    inputs = [
        torch.zeros(9, 4), torch.zeros(9, 2, 2), torch.zeros(9, 4, dtype=torch.int32), torch.zeros(9, 2).double(),
    ]  # fmt: skip
    splits = [Examples(values, NUMBERS.targets) for values in inputs]
    assert len({dataclasses.replace(REGRESSION, train=s, validation=s, test=s).fingerprint for s in splits}) == 4
