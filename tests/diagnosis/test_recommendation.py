"""Rules of the recommendation on rows with known expectations and noise."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import torch

import gradhomog
from gradhomog.diagnosis.recommend import INVALID, METHODS_FOR_CONFLICT, METHODS_FOR_NORMS, METHODS_FOR_TAILS, RULES
from tests.diagnosis.synthetic import draw, fed, means, opposed_batches


def diagnosed(*rows, params=200, batches=40, seed=0, noise=1.0, shared=0.0) -> gradhomog.DiagnosisResult:
    return fed(draw(means(*rows, params=params), batches, seed, noise, shared), ["a", "b", "c"][: len(rows)])


def codes(*rows, **options) -> list[str]:
    return [one.code for one in diagnosed(*rows, **options).recommendation]


def text(found, code) -> str:
    [sentence] = [one.text for one in found.recommendation if one.code == code]
    return sentence


def test_equal_expected_gradients_under_noise_are_no_conflict_and_need_averages():
    found = diagnosed((4.0, 0.0), (4.0, 1.0))
    assert [one.code for one in found.recommendation] == ["no_conflict", "average_more", "plain_mean"]
    assert "conflict do so by noise" in text(found, "no_conflict")
    assert float(found.single.conflict_rate.value) > 0.1


def test_opposite_expected_gradients_are_conflict_although_noise_dominates():
    found = diagnosed((6.0, 0.0), (-3.0, 4.0))
    assert [one.code for one in found.recommendation] == ["conflict", "average_more"]
    assert text(found, "conflict").startswith("real conflict between a and b (-0.")
    assert "decreases all losses" in text(found, "conflict")  # norms 6 and 5, cosine −0.6


def test_a_short_gradient_in_conflict_with_a_long_one_is_harmed():
    found = diagnosed((3.0, 0.0), (-12.0, 16.0), noise=0.1)  # norms 3 and 20, cosine −0.6
    assert [one.code for one in found.recommendation] == ["harmed_task", "conflict", "norms_differ", "little_noise"]
    assert "increases the loss of a (-0." in text(found, "harmed_task")
    assert "decreases all losses" not in text(found, "conflict")
    assert "× (6." in text(found, "norms_differ")
    assert "(b over a)" in text(found, "norms_differ")


@pytest.mark.parametrize("batches", [12, 48, 300])
def test_pure_noise_needs_no_more_batches(batches):
    found = diagnosed((0.0,), (0.0,), batches=batches, seed=1)
    assert [one.code for one in found.recommendation] == ["hidden_by_noise", "average_more"]
    assert "1 of 1 pairs (a and b) cannot matter" in text(found, "hidden_by_noise")
    assert found.advice.startswith("Use the plain mean, and average more")
    assert "Measure more batches" not in found.table()


def test_the_advice_comes_first_and_its_methods_and_command_run():
    names = ["depth", 'the "second"']
    found = fed(draw(means((1.0, 0.0), (0.0, 4.0), params=50), 20, seed=0, noise=0.05), names)
    assert found.advice == f"Compare the plain mean with auto and {found.methods[1]}."
    assert found.table().startswith(found.advice)
    assert repr(found).split("\n") == [
        found.advice, '2 tasks, 20 batches: depth, the "second"', "no_conflict, norms_differ, little_noise",
    ]  # fmt: skip
    command, *arguments = shlex.split(found.compare_command("run.toml"))
    assert [command, *arguments[:3]] == ["gradhomog", "compare", "run.toml", "--set"]
    methods = tomllib.loads(arguments[3])["homogenizers"]
    assert methods == ["none", *found.methods]
    weights = gradhomog.pipeline(methods[2]).homogenize(torch.eye(2), domains=names).weights
    assert weights.tolist() == pytest.approx([1.6, 0.4], rel=0.02)  # in proportion to 1 and 1/4
    rows = torch.tensor([[1.0, 0.0], [0.0, 4.0]])
    for method in methods:
        weights = gradhomog.pipeline(method).homogenize(rows, [1.0, 1.0], domains=names).weights
        assert weights is None or float(weights[0]) >= float(weights[1])  # none of them makes the longer row longer
    assert "<td>depth</td>" in found._repr_html_()


def test_aligned_expected_gradients_are_not_balanced():
    found = diagnosed((1.0, 0.0), (10.0, 0.01), noise=0.02, params=50)
    assert [one.code for one in found.recommendation] == ["no_conflict", "little_noise", "plain_mean"]
    assert found.methods == ()


@pytest.mark.parametrize("tasks", [2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_running_sums_of_gradients_are_recognized_and_other_rows_are_not(tasks, seed):
    """Without `zero_grad`: before each task, or before each batch only."""
    mean = means(*[(3.0, 0.0), (1.0, 3.0), (-1.0, 2.0)][:tasks], params=200)
    for shared in (0.0, 1.0):
        rows = draw(mean, 16, seed, shared=shared)
        for drawn, expected in (
            (rows, False),
            (rows.cumsum(1), shared == 0),  # shared noise hides it
            (rows.flatten(0, 1).cumsum(0).unflatten(0, rows.shape[:2]), True),
            (draw(mean, 16, seed, noise=0.0).flatten(0, 1).cumsum(0).unflatten(0, rows.shape[:2]), True),
        ):
            found = fed(drawn)
            if expected or drawn is rows:
                assert ([one.code for one in found.recommendation] == ["accumulated_rows"]) == expected


def test_without_signal_claims_are_rare_and_every_seed_has_a_table():
    claims = 0
    for seed in range(60):
        found = diagnosed((0.0,), (0.0,), params=40, batches=3, seed=seed)
        assert "Recommendation" in found.table()
        claims += bool({"conflict", "harmed_task", "norms_differ"} & {one.code for one in found.recommendation})
    assert claims <= 12  # three rules, each with a level of 5 %: at most 9 expected


def test_intervals_below_zero_for_squared_norms_are_reported_as_no_signal():
    found = fed(opposed_batches())
    assert found.noise.noise_scales.low.isinf().all()
    assert "No signal is measurable in the plain step with 3 batches" in text(found, "average_more")
    assert "unresolved" in found.table()


@pytest.mark.parametrize("seed", range(5))
def test_batches_that_are_needed_are_more_than_the_measured_ones(seed):
    mean = torch.zeros(8, 20, dtype=torch.float64)
    mean[range(8), range(8)], mean[:, 8] = 4.0, torch.tensor([1.6, -1.6] * 4, dtype=torch.float64)
    found = fed(draw(mean, 20, seed))
    needed = re.search(r"at least ([\d,]+) batches are needed", text(found, "unresolved"))
    assert needed is not None
    assert int(needed[1].replace(",", "")) > 20


def test_opposite_gradients_without_noise_in_rows_cancel_in_the_plain_step():
    found = diagnosed((10.0, 0.0), (-10.0, 0.01), params=50, noise=0.05)
    assert [one.code for one in found.recommendation] == ["conflict", "plain_step_cancels"]
    assert "not in single rows (noise scale at most 0.00" in text(found, "plain_step_cancels")
    without_signal = diagnosed((10.0, 0.0), (-10.0, 0.0), params=50, noise=0.05, batches=3, seed=3)
    assert "average_more" not in [one.code for one in without_signal.recommendation]


def test_many_tasks_with_noisy_rows_have_a_step_with_little_noise():
    found = fed(draw(means(*[(4.0,)] * 48, params=160), 12, seed=0))  # row: 160 / 16 = 10, step: 10 / 48
    assert [one.code for one in found.recommendation if one.code != "no_conflict"] == ["average_more", "little_noise"]
    assert "examples or batches in each row" in text(found, "average_more")


def test_noise_in_the_rows_of_some_tasks_is_reported_with_their_names():
    found = diagnosed((40.0, 0.0), (40.0, 1.0), (4.0, 0.0))  # noise scales 1/8, 1/8 and 12.5
    assert "× or more in single rows of c: methods" in text(found, "average_more")
    assert "little_noise" in [one.code for one in found.recommendation]


def test_conflict_at_a_small_cosine_without_noise_is_not_called_noise():
    found = diagnosed((1.0, 0.0), (-0.05, 1.0), noise=0.0, params=50)
    assert [one.code for one in found.recommendation] == ["no_conflict", "no_noise", "plain_mean"]
    assert "by noise" not in text(found, "no_conflict")
    assert "within ±0.1 are negligible" in text(found, "no_conflict")


def test_the_plain_step_is_the_mean_of_rows_not_of_tasks():
    """Nine rows of a and one of b: the mean has the inner product (9 · 1 − 3) / 10 with a."""
    rows = means(*[(1.0, 0.0)] * 9, (-3.0, 4.0), params=50)
    found = gradhomog.Diagnosis()
    for batch in draw(rows, 30, seed=0, noise=0.01):
        found.add(batch, ["a"] * 9 + ["b"])
    found = found.result()
    assert float(found.step.products.value[0]) == pytest.approx(0.6, abs=0.02)
    assert float(found.step.products.value[1]) == pytest.approx((-27 + 25) / 10, abs=0.02)
    assert text(found, "harmed_task").startswith("the plain step increases the loss of b")


def test_a_zero_task_leaves_no_pair_unresolved_and_does_not_hide_the_plain_mean():
    rows = draw(means((3.0, 0.0), (3.0, 1.0), params=20), 40, seed=0, noise=0.1)
    found = fed(torch.cat([rows, 0 * rows[:, :1]], dim=1), ["a", "b", "done"])
    codes = [one.code for one in found.recommendation]
    assert codes == ["zero_gradient", "no_conflict", "little_noise", "plain_mean"]


def test_a_rare_task_is_left_out_and_does_not_hide_a_harmed_task():
    rows = draw(means((1.0, 0.0), (-3.0, 4.0), (1.0, 1.0), params=50), 20, seed=0, noise=0.01)
    found = gradhomog.Diagnosis(["a", "b", "c", "never"])
    found.add(rows[0], ["a", "b", "c"])
    found.add(rows[1, 2:], ["c"])
    for batch in rows[2:]:
        found.add(batch[:2], ["a", "b"])
    found = found.result()
    assert (found.tasks, found.left_out, found.batches) == (("a", "b"), {"c": 2, "never": 0}, 19)
    assert [one.code for one in found.recommendation][:3] == ["rare_task", "harmed_task", "conflict"]
    assert "c (2 batches), never (0 batches)" in text(found, "rare_task")
    assert "nan" not in found.table()


CODES = [
    ([(1.0, 0.0), (-1.6, 19.9)], {"noise": 0.002, "params": 50, "batches": 60}, ["harmed_task", "conflict"]),
    ([(2.0, 0.0), (2.0, 0.0)], {"params": 8}, ["noise_like_signal"]),  # noise scale of the mean: 8 / 2 / 4 = 1
    ([(2.0, 0.0), (2.0, 0.0)], {"params": 10, "batches": 3, "seed": 1}, ["noise_unresolved"]),
    ([(1.0, 0.0), (0.5, 1.0)], {"params": 50, "noise": 1e-5, "shared": 1e-4}, []),  # correlation of negligible noise
    ([(1.0,)], {}, ["average_more"]),
    ([(1.0,)], {"noise": 0.0}, ["no_noise"]),
]


@pytest.mark.parametrize(("rows", "options", "expected"), CODES)
def test_rows_give_these_codes_and_one_task_those_of_its_noise_only(rows, options, expected):
    found = codes(*rows, **options)
    assert found == expected if len(rows) == 1 else set(expected) <= set(found)
    assert "shared_noise" not in found


def test_a_large_norm_is_reported_also_if_the_other_is_unresolved():
    found = diagnosed((60.0, 0.0), (0.0, 0.2), params=200)
    assert found.norm_ratios.value[0, 1].isnan()
    assert re.search(r"differ > \d+ × \(a over b\)", text(found, "norms_differ"))


def test_a_weighted_total_loss_gives_dependent_rows_and_separate_losses_do_not():
    rows = draw(means((1.0, 0.0), (0.0, 1.0), params=10), 20, seed=0, noise=0.05).float()
    found = fed(torch.cat([rows, rows[:, :1] + 10 * rows[:, 1:]], dim=1), ["a", "b", "total"])
    assert "linearly dependent" in text(found, "dependent_rows")
    for params in (2, 3):  # with two parameters, three rows are always dependent
        assert "dependent_rows" not in codes((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), params=params, noise=0.05)


def test_one_unresolved_pair_prevents_the_claim_of_no_conflict():
    found = diagnosed((15.0, 0.0), (15.0, 0.5), (0.1, 0.0), params=10)
    assert "no_conflict" not in [one.code for one in found.recommendation]
    assert "2 of 3 pairs" in text(found, "unresolved")


def test_shared_noise_is_reported_with_its_correlation():
    found = diagnosed((6.0, 0.0), (0.0, 6.0), shared=1.0)
    expected = found.noise.correlations
    assert expected.low[0, 1] < 0.5 < expected.high[0, 1]
    assert f"a and b ({float(expected.value[0, 1]):.2f} ±" in text(found, "shared_noise")
    assert "shared_noise" not in codes((6.0, 0.0), (0.0, 6.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gradients_of_the_summed_loss_give_this_sentence_only(dtype):
    found = gradhomog.Diagnosis()
    parameter = torch.nn.Parameter(torch.ones(3))
    for seed in range(4):
        x = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))
        total = (x @ parameter).square().sum()
        row = torch.autograd.grad(total, parameter)[0]  # the mistake: one loss is differentiated for each task
        found.add(torch.stack([row, 2 * row, -3 * row]).to(dtype))  # multiples, as of a `.grad` that accumulates
    assert [one.code for one in found.result().recommendation] == ["summed_loss"]


def test_rows_of_a_single_number_are_not_mistaken_for_a_summed_loss():
    assert "summed_loss" not in codes((3.0,), (-2.0,), params=1, noise=0.1)
    assert "total_as_task" not in codes((3.0,), (2.0,), (1.0,), params=1, noise=0.1)
    found = fed(draw(means((1.0, 0.0), (0.0, 1.0), params=50), 20, seed=0, noise=0.1), columns=1)
    assert "summed_loss" not in [one.code for one in found.recommendation]


def test_the_total_loss_and_a_zero_gradient_are_named():
    rows = draw(means((3.0, 0.0), (0.0, 2.0), params=20), 8, seed=0, noise=0.2)
    found = fed(torch.cat([rows, rows.sum(1, keepdim=True)], dim=1), ["a", "b", "total"])
    assert text(found, "total_as_task").startswith("the row of total is")
    half = fed(torch.cat([rows, rows.sum(1, keepdim=True) / 2], dim=1).float(), ["a", "b", "mean"])
    assert text(half, "total_as_task").startswith("the row of mean is")
    found = fed(torch.cat([rows, 0 * rows[:, :1]], dim=1), ["a", "b", "done"])
    assert text(found, "zero_gradient").startswith("all rows of done are zero")


@pytest.mark.slow
@pytest.mark.parametrize("cosine", [0.0, 0.3])
def test_false_conflicts_are_rarer_than_5_percent_also_among_many_pairs(cosine):
    """Six tasks with equal pairwise cosines: 15 pairs, of which none conflicts."""
    gram = torch.full((6, 6), cosine, dtype=torch.float64).fill_diagonal_(1.0)
    mean = torch.zeros(6, 40, dtype=torch.float64)
    mean[:, :6] = 6 * torch.linalg.cholesky(gram)
    false = 0
    for seed in range(100):
        found = fed(draw(mean, 20, seed))
        false += any(one.code in ("conflict", "harmed_task") for one in found.recommendation)
    assert false <= 9  # 5 % are 5, with a standard deviation of 2.2


def test_recommended_methods_exist():
    for method in {*METHODS_FOR_CONFLICT, *METHODS_FOR_NORMS, *METHODS_FOR_TAILS}:
        assert len(gradhomog.pipeline(method)) == 1


def test_the_guide_lists_every_code():
    root = Path(__file__).parents[2]
    codes = set(tomllib.loads((root / "gradhomog" / "diagnosis" / "recommendations.toml").read_text(encoding="utf-8")))
    assert codes == {*INVALID, *RULES}
    guide = (root / "docs" / "guide" / "diagnose.md").read_text(encoding="utf-8")
    assert [code for code in codes if f"`{code}`" not in guide] == []
