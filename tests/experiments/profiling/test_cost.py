"""What `gradhomog bench` measures: works in turn on one input, ratios within rounds, peers that do what they say."""

from __future__ import annotations

import importlib
import json
import math

import pytest
import torch
from scipy import stats

from gradhomog.errors import GradhomogError, OptionError, PluginRunError
from gradhomog.experiments.config.schema import load
from gradhomog.experiments.execution.threads import threads
from gradhomog.experiments.profiling import memory, steps, table
from gradhomog.experiments.profiling.rotation import Update, draw, rotation_costs
from gradhomog.experiments.profiling.rotation_peers import MAPS, OrthogonalLayers
from gradhomog.experiments.profiling.self_information import Attached, self_information_costs
from gradhomog.experiments.profiling.self_information_peers import concatenated_differences, drop, unfolded_patches
from gradhomog.experiments.profiling.spread import Spread
from gradhomog.experiments.profiling.timing import Timings, interleave, order
from gradhomog.tasks import TaskBatch
from tests.experiments.conftest import SMALL

# -- timing ------------------------------------------------------------------------------------------------------------


class Bench:
    """A clock that only works move, and a record of who worked on what."""

    def __init__(self, **durations: float) -> None:
        self.now, self.calls = 0.0, []
        self.works = {label: self._work(label, taken) for label, taken in durations.items()}

    def _work(self, label, taken):
        def work(given):
            self.calls.append((given, label))
            self.now += taken * given

        return work

    def run(self, **more):
        settings = {"rounds": 6, "seconds": math.inf, "at_least": 1, "together": True, "reference": "a"}
        return interleave(self.works, lambda number: number + 1, clock=lambda: self.now, **{**settings, **more})


@pytest.mark.parametrize("count", range(1, 8))
def test_over_two_rounds_per_work_every_work_takes_every_place_twice(count):
    labels = [f"work {index}" for index in range(count)]
    orders = [order(labels, number) for number in range(2 * count)]
    for found in orders:
        assert sorted(found) == labels
    for place in range(count):
        assert sorted(found[place] for found in orders) == sorted(labels * 2)
    assert orders[1] == orders[0][::-1]


def test_all_work_on_the_same_input_in_the_order_of_the_round():
    bench = Bench(a=1, b=1, c=1)
    bench.run(rounds=5)
    expected = [(number + 1, label) for number in range(6) for label in order("abc", number)]
    assert bench.calls == expected


def test_a_ratio_is_to_the_reference_in_the_same_round():
    # Round r takes r + 1 times as long: medians of seconds would move, ratios do not.
    timings = Bench(a=2, b=3, c=1).run(warm_up=2, rounds=4)
    assert timings.ratios("b", "a") == [1.5] * 4
    assert timings.ratios("c", "a") == [0.5] * 4
    assert timings.ratios("a", "a") == [1.0] * 4
    assert list(timings.counted("b").values()) == [9.0, 12.0, 15.0, 18.0]


def test_warm_up_counts_only_for_a_work_that_had_nothing_else():
    timings = Timings(1, {"a": {0: 9.0, 1: 2.0}, "b": {0: 5.0}})
    assert timings.counted("a") == {1: 2.0}
    assert timings.counted("b") == {0: 5.0}


def test_together_all_stop_with_the_budget_but_not_before_the_least_number_of_rounds():
    spent = Bench(a=1, b=1).run(seconds=7, rounds=100)  # 2, 4 and 6 seconds: 6 < 7 after two rounds, 12 after three
    assert {label: len(taken) for label, taken in spent.seconds.items()} == {"a": 3, "b": 3}
    least = Bench(a=1, b=1).run(seconds=1e-9, at_least=5, rounds=100)
    assert {label: len(taken) for label, taken in least.seconds.items()} == {"a": 5, "b": 5}


def test_apart_each_has_an_equal_share_of_the_budget():
    timings = Bench(a=0.01, slow=50).run(seconds=100, rounds=20, together=False)
    assert len(timings.seconds["a"]) == 21
    assert list(timings.seconds["slow"]) == [0]
    assert timings.counted("slow") == {0: 50.0}


def test_a_work_that_fails_is_told_and_left_out_and_the_others_go_on():
    bench = Bench(a=1, b=1, c=1)

    def fail(given):
        if given == 3:
            raise PluginRunError("out of ideas")

    bench.works["b"] = fail
    timings = bench.run()
    assert timings.failures == {"b": "out of ideas"}
    assert list(timings.seconds["b"]) == [0, 1]
    assert len(timings.seconds["a"]) == len(timings.seconds["c"]) == 7


def test_a_reference_that_fails_fails_everything():
    bench = Bench(a=1, b=1)
    bench.works["a"] = lambda given: (_ for _ in ()).throw(PluginRunError("no plain learner"))
    with pytest.raises(GradhomogError, match="no plain learner"):
        bench.run()


def test_the_number_of_threads_is_put_back():
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [6, 7, 15, 50, 101])
def test_the_interval_of_the_median_is_the_narrowest_of_order_statistics_that_holds_95_percent(n):
    spread = Spread.of([float(value) for value in range(1, n + 1)])
    rank = round(spread.low)
    assert spread.high == n + 1 - rank
    assert 2 * stats.binom.cdf(rank - 1, n, 0.5) <= 0.05 < 2 * stats.binom.cdf(rank, n, 0.5)
    assert spread.median == (n + 1) / 2


def test_fewer_than_six_values_have_no_interval_and_none_is_an_error():
    spread = Spread.of([3.0, 1.0, 2.0])
    assert (spread.median, spread.minimum, spread.maximum, spread.n) == (2.0, 1.0, 3.0, 3)
    assert math.isnan(spread.low)
    assert spread.record()["low"] is None
    assert Spread.of([4.0]).quarter == 4.0
    with pytest.raises(OptionError, match="at least one number"):
        Spread.of([])


def test_peak_memory_counts_what_is_live_at_one_time():
    kilobyte = 1024

    def work():
        one = torch.empty(64 * kilobyte, dtype=torch.uint8)
        two = torch.empty(32 * kilobyte, dtype=torch.uint8)
        del one
        three = torch.empty(48 * kilobyte, dtype=torch.uint8)
        return two, three

    assert memory.peak_bytes(work) == 96 * kilobyte
    assert memory.peak_bytes(lambda: None) == 0


def test_peak_memory_counts_the_backward_pass_too():
    x = torch.ones(1000, requires_grad=True)
    forward = memory.peak_bytes(lambda: (x * 2).exp().exp().sum())
    assert memory.peak_bytes(lambda: (x * 2).exp().exp().sum().backward()) >= forward + x.nbytes


def test_held_bytes_are_those_of_all_tensors():
    state = {"a": torch.zeros(3), "b": [torch.zeros(2, dtype=torch.float64), {"c": 5}], "d": "text"}
    assert memory.held_bytes(state) == 12 + 16


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (table.ratio_text, 1.0449, "1.04"),
        (table.ratio_text, 29.33, "29.3"),
        (table.ratio_text, 4321.0, "4,321"),
        (table.ratio_text, 1 / 52, "1/52"),
        (table.ratio_text, 1 / 52813, "1/52,813"),
        (table.time_text, 12.34, "12.3 s"),
        (table.time_text, 0.1072, "107 ms"),
        (table.time_text, 0.000234, "234 µs"),
        (table.time_text, 5e-9, "5 ns"),
    ],
)
def test_numbers_are_written_with_three_digits(function, value, text):
    assert function(value) == text


def test_the_table_shows_times_ratios_and_added_memory_and_is_plain_data():
    timings = Timings(0, {"plain": dict.fromkeys(range(6), 0.1), "b": dict.fromkeys(range(6), 0.103)})
    rows = table.rows(timings, ["plain"], paired=True, peaks={"plain": 10**7, "b": 12 * 10**6}, held={"b": 10**6})
    made = table.Table("a step", ("plain",), rows, ("a note",), {"c": "broke"})
    text = table.render(made)
    first, second = text.splitlines()[4:6]
    assert first.split() == ["plain", "100", "ms", "–", "–", "10.0", "MB", "6"]
    assert second.split() == ["b", "103", "ms", "×", "1.03", "1.03", "–", "1.03", "+3.00", "MB", "6"]
    assert text.endswith("a note\nFailed: c: broke")
    data = json.loads(json.dumps(table.to_json(made), allow_nan=False))
    assert data["rows"][1]["added_bytes"] == 3 * 10**6
    assert data["rows"][1]["ratios"]["plain"]["median"] == pytest.approx(1.03)


def test_a_row_tells_its_difference_to_the_first_reference_and_its_ratio_to_its_peer():
    taken = {"a": [1.0, 2.0, 4.0], "b": [1.5, 2.5, 4.5], "c": [3.0, 5.0, 9.0], "failed": [1.0]}
    timings = Timings(0, {label: dict(enumerate(seconds)) for label, seconds in taken.items()}, {"failed": "broke"})
    given = {"paired": True, "peaks": {"a": 10**6, "b": 10**6 - 4000, "c": 10**6}, "held": {}}
    peers = {"b": "c", "a": "failed", "c": "absent"}
    made = table.Table("t", ("a",), table.rows(timings, ["a"], **given, difference=True, peers=peers), ())
    a, b, c = made.rows
    assert (a.beyond, a.to_peer, c.to_peer) == (None, None, None)
    assert (b.beyond.median, c.beyond.median) == (0.5, 3.0)
    assert b.to_peer.median == 0.5
    lines = table.render(made).splitlines()
    assert "over a" in lines[2]
    assert lines[5].split()[-7:] == ["+500", "ms", "×", "0.50", "+0.00", "MB", "3"]
    assert table.to_json(made)["rows"][1]["beyond"]["median"] == 0.5
    assert "over a" not in table.render(table.Table("t", ("a",), table.rows(timings, ["a"], **given), ()))


def test_a_trial_without_common_rounds_may_still_form_its_ratios_within_rounds():
    # "b" is so slow that it has a share of the first rounds only, in which "a" is slow, too.
    taken = {"a": [3.0, 2.0, 1.0, 1.0, 1.0], "b": [6.0, 4.0]}
    timings = Timings(1, {label: dict(enumerate(seconds)) for label, seconds in taken.items()})
    ratio = {
        paired: table.rows(timings, ["a"], paired=paired, peaks={}, held={})[1].ratios["a"].median
        for paired in (True, False)
    }
    assert ratio == {True: 2.0, False: 4.0}


# -- steps -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small():
    return load(None, [*SMALL, "seeds=1"])


def test_plain_stands_first_and_twice_and_of_candidates_the_first_is_taken(small):
    assert steps.pipelines(small, "maml") == {
        "plain": "none", "plain again": "none", "pcgrad": "pcgrad", "static": "static",
    }  # fmt: skip
    without = load(None, [*SMALL, 'homogenizers=["pcgrad", "pcgrad | static"]'])
    assert list(steps.pipelines(without, "maml")) == ["plain", "plain again", "pcgrad"]


def test_learners_start_alike_and_share_nothing(small):
    source = steps.trainer.streams(small, 0)
    made = steps._steppers(small, "maml", source)
    parameters = {label: stepper.learner.parameters() for label, stepper in made.items()}
    start = [parameter.detach().clone() for parameter in parameters["plain"]]
    for label, own in parameters.items():
        assert all(map(torch.equal, own, start)), label
    storages = [parameter.data_ptr() for own in parameters.values() for parameter in own]
    assert len(set(storages)) == len(storages)
    batch = source.train.batch(0)
    before = batch.query_x.clone()
    made["pcgrad"](batch)
    assert torch.equal(batch.query_x, before)
    for label, own in parameters.items():
        assert all(map(torch.equal, own, start)) == (label != "pcgrad")


def test_the_two_plain_learners_take_the_same_steps(small):
    source = steps.trainer.streams(small, 0)
    made = steps._steppers(small, "maml", source)
    for number in range(3):
        for label in order(list(made), number):
            made[label](source.train.batch(number))
    one, two = (made[label].learner.parameters() for label in ("plain", steps.AGAIN))
    assert all(map(torch.equal, one, two))


@pytest.mark.slow
def test_a_step_table_has_every_method_with_rounds_and_memory(small):
    ticks = iter(range(10**6))
    (found,) = steps.step_costs(small, rounds=4, seconds=1e9, clock=lambda: float(next(ticks)))
    assert [row.label for row in found.rows] == ["plain", "plain again", "pcgrad", "static"]
    for row in found.rows:
        assert row.seconds.n == row.ratios["plain"].n == 4
        assert row.ratios["plain"].median == 1.0  # of a clock that ticks once per look
        assert row.peak_bytes
    assert found.added_bytes(found.rows[1]) == 0
    assert "maml" in found.title
    assert found.failures == {}


def test_every_learner_has_a_table(small):
    both = load(None, [*SMALL, 'learner=["maml", "fomaml"]', 'homogenizers=["none"]'])
    found = steps.step_costs(both, rounds=3, seconds=1e-9)
    assert [one.title.split(":")[0] for one in found] == ["one meta-step of maml", "one meta-step of fomaml"]
    assert all(row.seconds.n == 3 for one in found for row in one.rows)


def test_a_homogenizer_that_fails_in_a_step_is_told(gradhomog_install):
    from tests.experiments.execution.test_comparison import FAULTY

    gradhomog_install("faulty-dist", FAULTY, plugin="faulty")
    (found,) = steps.step_costs(load(None, [*SMALL, 'homogenizers=["faulty"]']), rounds=6, seconds=1e9)
    assert "out of ideas" in found.failures["faulty"]
    assert [row.label for row in found.rows] == ["plain", "plain again"]


# -- rotation ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAPS)
def test_a_peers_rotation_starts_at_the_identity_stays_orthogonal_and_aligns(name):
    torch.manual_seed(0)
    given = draw((3, 5, 8), 0)
    peer = OrthogonalLayers(3, 8, name)
    for matrix in peer.matrices():
        torch.testing.assert_close(matrix, torch.eye(8), rtol=0, atol=1e-6)
    before = peer.objective(given.cotangents).item()
    for _ in range(8):
        matrices = [matrix.detach() for matrix in peer.matrices()]
        cotangents = peer(given)
        # z̃ = R z, so the derivative by z is Rᵀ times the one by z̃; as rows, g̃ R.
        expected = torch.stack([g @ matrix for g, matrix in zip(given.cotangents, matrices, strict=True)])
        torch.testing.assert_close(cotangents, expected, rtol=1e-5, atol=1e-6)
    assert peer.objective(given.cotangents).item() < before
    for matrix in peer.matrices():
        torch.testing.assert_close(matrix @ matrix.T, torch.eye(8), rtol=0, atol=1e-5)


# Doubles the features, and scales the activations that it is attached to; notes the calls.
FAKE = """
import gradhomog, torch
CALLS = []
class Fake(gradhomog.Homogenizer):
    def __init__(self, factor: float = 2.0):
        self.factor = factor
    def attach(self, encoder):
        CALLS.append("attach")
        return encoder.register_forward_hook(lambda module, given, out: self.factor * out)
    def begin(self, key, part, generator):
        CALLS.append("begin")
    def transform(self, features, keys):
        CALLS.append("transform")
        return self.factor * features
    def update(self, step):
        CALLS.append(("update", step.features.requires_grad, tuple(step.feature_grads.shape)))
        return {}
@gradhomog.hookimpl
def gradhomog_homogenizer():
    return gradhomog.HomogenizerSpec(factory=Fake, summary="doubles", needs={"features"})
"""


@pytest.fixture
def calls(gradhomog_install):
    gradhomog_install("fake-kernels", FAKE, plugin="fake_kernel")
    return importlib.import_module("fake_kernels").CALLS


def test_our_update_brings_cotangents_back_and_tells_the_homogenizer_detached(calls):
    given = draw((3, 5, 8), 0)
    found = Update("fake_kernel", 3)(given)
    torch.testing.assert_close(found, 2 * given.cotangents)
    assert calls == ["transform", ("update", False, (3, 5, 8))]


def test_inputs_of_a_round_are_the_same_every_time_and_of_two_rounds_differ():
    one, again, other = draw((2, 3, 4), 5), draw((2, 3, 4), 5), draw((2, 3, 4), 6)
    assert torch.equal(one.cotangents, again.cotangents)
    assert not torch.equal(one.features, other.features)


def test_rotation_tables_have_ours_and_the_peers(calls):
    found = rotation_costs(["fake_kernel", "fake_kernel(factor=3.0)"], [(2, 3, 4), (2, 3, 5)], rounds=3, seconds=60)
    assert [one.title.split(",")[0] for one in found] == [
        "one update of 2 rotations of 4 features", "one update of 2 rotations of 5 features",
    ]  # fmt: skip
    labels = [row.label for row in found[0].rows]
    assert labels[:2] == ["fake_kernel", "fake_kernel(factor=3.0)"]
    assert labels[2:] == [f"torch orthogonal, {name}" for name in MAPS]
    assert all(row.seconds.n == 3 for row in found[0].rows)
    assert found[0].rows[2].ratios["torch orthogonal, matrix_exp"].median == 1.0


@pytest.mark.parametrize(
    ("costs", "shape"), [(rotation_costs, (4, 75)), (rotation_costs, (4, 0, 2)), (self_information_costs, (2, 3, 4))]
)
def test_a_shape_that_does_not_suit_the_kernel_is_refused(costs, shape):
    with pytest.raises(OptionError, match="`--shape` must be .* got " + "x".join(map(str, shape))):
        costs(["none"], [shape], rounds=3, seconds=1)


# -- self-information --------------------------------------------------------------------------------------------------


def naive_sums(x, radius, kernel, padding):
    """By the definition: patches of the input with zeros around it, position by position."""
    n, _, height, width = x.shape

    def value(image, channel, row, column):
        inside = 0 <= row < height and 0 <= column < width
        return float(x[image, channel, row, column]) if inside else 0.0

    rows, columns = height + 2 * padding - kernel + 1, width + 2 * padding - kernel + 1
    shifts = [(i, j) for i in range(-radius, radius + 1) for j in range(-radius, radius + 1)]
    distances = torch.zeros(n, len(shifts), rows, columns, dtype=torch.float64)
    for image in range(n):
        for index, (i, j) in enumerate(shifts):
            for row in range(rows):
                for column in range(columns):
                    total = 0.0
                    for channel in range(x.shape[1]):
                        for a in range(kernel):
                            for b in range(kernel):
                                r, c = row - padding + a, column - padding + b
                                gap = value(image, channel, r, c) - value(image, channel, r + i, c + j)
                                total += gap * gap
                    distances[image, index, row, column] = total
    return torch.exp(-distances / (2 * distances.mean())).sum(dim=1)


@pytest.mark.parametrize(("radius", "kernel", "padding"), [(1, 3, 1), (2, 2, 0), (1, 1, 0)])
@pytest.mark.parametrize("form", [concatenated_differences, unfolded_patches])
def test_a_peers_form_is_the_definition(form, radius, kernel, padding):
    x = torch.randn(2, 2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = form(x, radius, kernel, padding)
    torch.testing.assert_close(found, naive_sums(x, radius, kernel, padding), rtol=1e-12, atol=1e-12)


def test_at_equal_self_information_the_mask_drops_the_rate_everywhere():
    outputs, random = torch.ones(50, 8, 10, 10), torch.Generator().manual_seed(0)
    kept = drop(outputs, torch.full((50, 10, 10), 3.0), 0.25, 0.5, random)
    dropped = int((kept == 0).sum())
    assert stats.binomtest(dropped, outputs.numel(), 0.25).pvalue > 1e-3
    assert torch.equal(drop(outputs, torch.rand(50, 10, 10) + 1, 0.0, 0.5, random), outputs)


def test_ours_is_attached_for_the_call_only_and_begins_anew_every_time(calls):
    convolution = torch.nn.Conv2d(2, 3, 3, padding=1)
    x = torch.ones(1, 2, 5, 5)
    ours = Attached("fake_kernel", convolution)
    torch.testing.assert_close(ours(x), 2 * convolution(x))
    torch.testing.assert_close(ours(x), 2 * convolution(x))
    torch.testing.assert_close(ours.encoder(x), convolution(x))
    assert calls == ["attach", "begin"] * 2


def test_a_self_information_table_has_time_and_memory_of_all_forms(calls):
    (found,) = self_information_costs(["fake_kernel"], [(2, 3, 8, 8)], rounds=3, seconds=60)
    assert [row.label for row in found.rows] == ["convolution", "fake_kernel", "published form", "unfold form"]
    bare, ours, published, _ = found.rows
    assert published.peak_bytes > ours.peak_bytes > bare.peak_bytes >= 2 * 64 * 8 * 8 * 4
    assert set(ours.ratios) == {"convolution", "published form", "unfold form"}
    assert found.title == "self-information on inputs 2x3x8x8, 1 thread"


def test_batches_are_those_of_the_run_files_domains(small, monkeypatch):
    seen = []
    monkeypatch.setattr(steps.Stepper, "__call__", lambda self, batch: seen.append(batch))
    steps.step_costs(small, rounds=3, seconds=1e-9)
    assert all(isinstance(batch, TaskBatch) for batch in seen)
    assert {name.split(":")[0] for batch in seen for name in batch.domains} == {"functions"}
    assert len({id(batch) for batch in seen[:4]}) == 1
