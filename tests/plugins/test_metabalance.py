"""MetaBalance against its loop over tensors and tasks written out, its strategies, and its primary task."""

import pytest
import torch

import gradhomog
from gradhomog import OptionError
from tests.plugins.rows import normal

SIZES = {"weight": (4, 3), "bias": (4,), "scalar": ()}


def steps(count, tasks=3):
    scales = torch.tensor([1.0, 30.0, 0.01], dtype=torch.float64)[:tasks]
    for step in range(count):
        yield {
            name: normal(tasks, *size, seed=10 * step + index) * scales.reshape(-1, *[1] * len(size)) * (index + 1)
            for index, (name, size) in enumerate(SIZES.items())
        }


def loop(history, relax, beta, strategy="both"):
    """Algorithm 1: averages that start at zero, one per tensor and task; returns the sum of the rows."""
    averages, direction = {}, {}
    for blocks in history:
        for name, rows in blocks.items():
            total = torch.zeros_like(rows[0])
            for task, row in enumerate(rows):
                old = averages.get((name, task), 0.0)
                averages[name, task] = beta * old + (1 - beta) * float(row.square().sum()) ** 0.5
                ratio = averages[name, 0] / averages[name, task]
                if strategy == "both" or (ratio < 1) == (strategy == "reduce"):
                    row = relax * ratio * row + (1 - relax) * row
                total = total + row
            direction[name] = total
    return direction


@pytest.mark.parametrize("strategy", ["both", "reduce", "enlarge"])
@pytest.mark.parametrize(("relax", "beta"), [(0.7, 0.9), (1.0, 0.0), (0.2, 0.5)])
def test_it_is_the_loop_of_algorithm_1_in_the_papers_scale(relax, beta, strategy):
    options = {"relax": relax, "beta": beta, "strategy": strategy, "scale": "paper"}
    pipe, history = gradhomog.pipeline([("metabalance", options)]), list(steps(4))
    for blocks in history:
        found = pipe.combine(blocks)
    expected = loop(history, relax, beta, strategy)
    for name in SIZES:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-10, atol=1e-12)


def test_a_new_key_starts_with_the_norm_of_its_first_row():
    rows = torch.diag(torch.tensor([2.0, 4.0, 8.0], dtype=torch.float64))
    pipe = gradhomog.pipeline("metabalance(relax=1, primary='main')")
    for _ in range(3):
        pipe.combine(rows[:2], domains=["main", "old"])
    found = pipe.combine(rows, domains=["main", "old", "new"])
    torch.testing.assert_close(found, torch.full((3,), 2 / 3, dtype=torch.float64))


def test_in_a_step_without_the_primary_task_its_last_average_counts():
    rows = torch.diag(torch.tensor([2.0, 4.0, 8.0], dtype=torch.float64))
    pipe = gradhomog.pipeline("metabalance(relax=1)")
    pipe.combine(rows)
    found = pipe.homogenize(rows[1:], slots=[1, 2]).direction[""]
    torch.testing.assert_close(found, torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64))
    with pytest.raises(OptionError, match=r"in the first batch \(rows with other names restart the averages\); got 0"):
        pipe.homogenize({"other": rows[1:]}, slots=[1, 2])


@pytest.mark.parametrize(("long", "short"), [(1e20, 1e-20), (1.0, 1e-37), (3e38, 1e-37)])
def test_ratios_of_norms_beyond_the_range_of_float32_give_finite_rows(long, short):
    rows = torch.tensor([[long, 0.0], [0.0, short]])
    found = gradhomog.pipeline("metabalance(relax=1)").combine(rows)
    torch.testing.assert_close(found, torch.tensor([long / 2, long / 2]), rtol=1e-2, atol=0)


def test_rows_below_the_normal_numbers_of_float32_are_scaled_as_if_they_had_the_least_of_them():
    found = gradhomog.pipeline("metabalance(relax=1)").combine(torch.tensor([[1.0, 0.0], [0.0, 1e-39]]))
    assert float(found[0]) == 0.5
    assert 0 <= float(found[1]) < 0.5


def test_a_row_that_stays_zero_until_its_average_underflows_is_zero():
    pipe, rows = gradhomog.pipeline("metabalance(relax=1, beta=0.001)"), torch.diag(torch.tensor([2.0, 1e-30]))
    for _ in range(12):
        found = pipe.combine(rows)
        rows[1] = 0
    torch.testing.assert_close(found, torch.tensor([1.0, 0.0]))


def test_a_square_that_overflows_float64_raises():
    rows = torch.tensor([[1e200, 0.0], [0.0, 1e-200]], dtype=torch.float64)
    with pytest.raises(OptionError, match="the square of a row's norm overflows float64"):
        gradhomog.pipeline("metabalance").combine(rows)


def test_zero_rows_and_tensors_without_the_primary_task():
    blocks = {"a": torch.tensor([[0.0, 0.0], [1.0, 2.0]]), "b": torch.tensor([[3.0, 4.0], [0.0, 0.0]])}
    found = gradhomog.pipeline("metabalance").combine(blocks)
    torch.testing.assert_close(found["a"], 0.3 * blocks["a"][1] / 2)  # n₀ = 0: the factor 1 − r
    torch.testing.assert_close(found["b"], blocks["b"][0] / 2)


def test_two_primary_tasks_of_one_domain_are_scaled_to_the_mean_of_their_norms():
    rows = torch.diag(torch.tensor([1.0, 3.0, 8.0], dtype=torch.float64))
    pipe = gradhomog.pipeline("metabalance(primary='main', relax=1, scale='paper')")
    found = pipe.combine(rows, domains=["main", "main", "side"])
    torch.testing.assert_close(found, torch.full((3,), 2.0, dtype=torch.float64))
