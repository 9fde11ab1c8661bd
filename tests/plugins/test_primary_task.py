"""Methods with a primary task, PCD, SAGO, LRA, MetaBalance, against their formulas written out."""

import math

import numpy as np
import pytest
import quadprog
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import gradhomog
from gradhomog import NonfiniteError, OptionError
from gradhomog.testing import jacobians
from tests.plugins.rows import both_dtypes, combine_in_tensors, normal


def pcd(rows, create_graph=False, domains=None, **options):
    return gradhomog.pipeline([("pcd", options)]).combine(rows, create_graph=create_graph, domains=domains)


def program(rows, taus, primary=0):
    """The program in the space of parameters, for rows divided by their norms (the first step), scaled to ‖g_1‖."""
    units = (rows / rows.norm(dim=1, keepdim=True)).double().numpy()
    others = [place for place in range(len(rows)) if place != primary]
    bounds = np.asarray([taus[place] for place in others], dtype=float)
    solution = quadprog.solve_qp(np.eye(rows.shape[1]), units[primary], units[others].T, bounds)[0]
    return torch.from_numpy(solution / np.linalg.norm(solution)) * rows[primary].double().norm()


@given(jacobians(tasks=(2, 6), params=(7, 12), spread=2, zero=False, duplicate=False, opposite=False), st.data())
def test_every_other_task_receives_its_share_and_no_more_than_necessary(rows, data):
    units = rows / rows.norm(dim=1, keepdim=True)
    assume(float(torch.linalg.cond(units)) < 100)
    taus = [data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])) for _ in rows]
    primary = data.draw(st.integers(0, len(rows) - 1))
    expected = program(rows, taus, primary)
    assume(bool(expected.isfinite().all()))
    found = pcd(rows, tau=taus, primary=primary)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7 * float(rows[primary].norm()))


def test_all_steps_until_now_have_nearly_the_same_weight_in_the_first_of_them():
    # v̂ is the mean of the squares at first; an average that starts at its first value would follow it for long.
    pipe, rows = gradhomog.pipeline("pcd(tau=0.5)"), torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    for norm in (1.0, 3.0, 5.0):
        direction = pipe.combine(rows * torch.tensor([[1.0], [norm]]))
    share = 0.5 * 5.0 / math.sqrt((1 + 9 + 25) / 3)
    torch.testing.assert_close(direction[1] / direction[0], torch.tensor(share, dtype=torch.float64), rtol=1e-3, atol=0)


def test_a_factor_of_another_loss_has_no_effect_and_one_of_the_primary_loss_only_on_the_length():
    rows, plain, scaled = normal(3, 6), gradhomog.pipeline("pcd(tau=0.3)"), gradhomog.pipeline("pcd(tau=0.3)")
    factors = torch.tensor([[4.0], [1e-9], [1e9]], dtype=torch.float64)
    for step in range(3):
        each = rows + normal(3, 6, seed=step + 1)
        torch.testing.assert_close(scaled.combine(factors * each), 4 * plain.combine(each))


@pytest.mark.parametrize("count", [2, 3, 4, 6])
@both_dtypes
def test_exclusive_constraints_of_rows_that_cancel_together_are_ignored(count, dtype):
    others = normal(count, 9, seed=count) * torch.logspace(0, 2, count, dtype=torch.float64)[:, None]
    others[-1] = -others[:-1].sum(0)
    rows = torch.cat([normal(1, 9), others]).to(dtype)
    torch.testing.assert_close(pcd(rows, tau=0.1), rows[0])


@both_dtypes
def test_with_tau_zero_opposite_rows_leave_the_part_of_the_primary_row_that_is_orthogonal_to_them(dtype):
    rows = normal(3, 20).to(dtype)
    rows[2] = -3 * rows[1]
    rest = rows[0] - (rows[0] @ rows[1]) / (rows[1] @ rows[1]) * rows[1]
    expected = rest / rest.norm() * rows[0].norm()
    torch.testing.assert_close(pcd(rows, tau=0.0), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("angle", [1e-1, 1e-2])
def test_nearly_opposite_float32_rows_are_resolved_down_to_a_tenth_of_a_degree(angle):
    basis = torch.linalg.qr(normal(1000, 3))[0].T
    rows = torch.stack([basis[0] + basis[1], basis[1] + angle * basis[2], -basis[1] + angle * basis[2]])
    expected = program(rows, [0.1] * 3)
    torch.testing.assert_close(pcd(rows.float(), tau=0.1).double(), expected, rtol=0, atol=1e-2)
    torch.testing.assert_close(pcd(rows, tau=0.1), expected, rtol=0, atol=1e-6)


def test_an_opposite_row_gives_zero_for_tau_zero_and_its_own_direction_above():
    row = normal(1000).float()
    rows = torch.stack([row, -2 * row])
    assert pcd(rows, tau=0.0).tolist() == [0.0] * 1000
    torch.testing.assert_close(pcd(rows, tau=0.1), -row)


def test_zero_rows():
    rows = torch.cat([normal(2, 5), torch.zeros(1, 5)])
    rows[1] -= rows[0]
    torch.testing.assert_close(pcd(rows, tau=0.3), pcd(rows[:2], tau=0.3))
    assert pcd(rows, primary=2).tolist() == [0.0] * 5


def test_the_primary_task_is_found_by_slot_or_domain():
    rows, domains = normal(3, 6), ["data", "physics", "sparse"]
    rows[1:] -= rows[0]
    expected = pcd(rows[[1, 0, 2]], tau=[0.0, 0.1, 0.4])
    torch.testing.assert_close(pcd(rows, primary=1, tau=[0.1, 0.9, 0.4]), expected)
    shares = {"data": 0.1, "*": 0.4}
    torch.testing.assert_close(pcd(rows, primary="physics", tau=shares, domains=domains), expected)
    torch.testing.assert_close(
        pcd(rows, primary="physics", tau={"data": 0.1}, domains=domains), pcd(rows[[1, 0, 2]], tau=[0.0, 0.1, 0.0])
    )


def sago(rows, domains=None, **options):
    return gradhomog.pipeline([("sago", options)]).combine(rows, domains=domains)


def sago_by_entries(primary, auxiliary, agreeing):
    """`_apply_sago` and `_apply_sago_prefer_retain` of the authors' code with weights of one, entry by entry."""
    result = torch.zeros_like(primary)
    for place, (retained, forgotten) in enumerate(zip(primary.tolist(), auxiliary.tolist(), strict=True)):
        if retained * forgotten < 0:
            result[place] = retained
        else:
            result[place] = forgotten if agreeing == "auxiliary" else forgotten + retained
    return result


@both_dtypes
@pytest.mark.parametrize("agreeing", ["auxiliary", "both"])
def test_two_rows_give_the_authors_direction_in_the_papers_scale(agreeing, dtype):
    rows = normal(2, 300, dtype=dtype)
    rows[0, :3] = 0
    found = sago(rows, agreeing=agreeing, **({"scale": "paper"} if agreeing == "both" else {}))
    torch.testing.assert_close(found, sago_by_entries(*rows, agreeing))


@given(jacobians(tasks=(2, 5), params=(1, 8)), st.sampled_from(["auxiliary", "both"]), st.data())
def test_no_entry_has_the_opposite_sign_of_the_primary_rows_entry(rows, agreeing, data):
    primary = data.draw(st.integers(0, len(rows) - 1))
    found = sago(rows, agreeing=agreeing, primary=primary)
    assert bool((found.sign() * rows[primary].sign() >= 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_signs_of_entries_whose_product_underflows_are_compared(dtype):
    tiny = torch.finfo(dtype).tiny
    rows = torch.tensor([[tiny, tiny], [2 * tiny, -2 * tiny]], dtype=dtype)
    torch.testing.assert_close(sago(rows), torch.tensor([2 * tiny, tiny], dtype=dtype), rtol=0, atol=0)


def test_each_auxiliary_row_is_compared_with_the_primary_row():
    rows = torch.tensor([[-1.0, 2.0], [1.0, 1.0], [3.0, -4.0]])
    torch.testing.assert_close(sago(rows, primary=1), torch.tensor([(1.0 + 3.0) / 2, (2.0 + 1.0) / 2]))
    torch.testing.assert_close(sago(rows, primary=1, agreeing="both"), torch.tensor([4.0 / 3, 3.0 / 3]))


def test_several_primary_tasks_count_as_their_mean():
    rows = torch.tensor([[5.0, 1.0], [1.0, 2.0], [-2.0, 3.0]])
    domains = ["forget", "retain", "retain"]
    torch.testing.assert_close(sago(rows, domains=domains, primary="retain"), torch.tensor([-0.5, 1.0]))
    assert sago(rows[1:], domains=["retain"] * 2, primary="retain").tolist() == [-0.5, 2.5]


def lra_loop(steps, alpha, weighted, primary=0):
    """Weights λ after all steps, one task after another, in Python floats."""
    weights = [1.0] * len(steps[0])
    for rows in steps:
        sizes = [[abs(entry) for entry in row] for row in rows.tolist()]
        numerator = max(sizes[primary])
        for task, entries in enumerate(sizes):
            if task != primary:
                mean = sum(entries) / len(entries) * (weights[task] if weighted else 1.0)
                weights[task] = (1 - alpha) * weights[task] + alpha * numerator / mean
    return torch.tensor(weights, dtype=torch.float64)


@pytest.mark.parametrize("scale", ["mean", "paper"])
@pytest.mark.parametrize(("alpha", "weighted"), [(0.1, True), (0.9, False), (1.0, True), (1.0, False)])
def test_it_is_the_recursion_written_out_with_the_weights_of_this_step(scale, alpha, weighted):
    options = {"alpha": alpha, "weighted": weighted, "scale": scale}
    pipe = gradhomog.pipeline([("lra", options)])
    steps = [normal(3, 8, seed=seed) * torch.tensor([[9.0], [1.0], [0.1]]) for seed in range(5)]
    for rows in steps:
        found = combine_in_tensors(pipe, rows)
    weights = lra_loop(steps, alpha, weighted)
    expected = weights @ steps[-1] / (1.0 if scale == "paper" else weights.sum())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("rows", "scale", "limit"),
    [
        (torch.tensor([[1e200, 0.0], [0.0, 1e-200]], dtype=torch.float64), "mean", "1e\\+300"),
        (torch.tensor([[1e30, 0.0], [0.0, 1e-30]]), "paper", "1e\\+30"),
    ],
)
def test_weights_that_overflow_raise(rows, scale, limit):
    with pytest.raises(OptionError, match=f"lra.*: weights λ must be at most {limit}; task 1 has .*Multiply"):
        gradhomog.pipeline(f"lra(scale='{scale}')").combine(rows)


def test_two_primary_tasks_of_one_domain_give_the_mean_of_their_largest_entries():
    rows = torch.tensor([[2.0, 0.0], [0.0, 6.0], [1.0, 1.0]], dtype=torch.float64)
    pipe = gradhomog.pipeline("lra(primary='pde', alpha=1)")
    assert pipe.homogenize(rows, domains=["pde", "pde", "wall"]).measured["lra"]["weights"] == [1, 1, 4]


def test_without_the_primary_task_weights_are_kept():
    rows = torch.tensor([[8.0, 0.0], [1.0, 1.0], [2.0, 2.0]], dtype=torch.float64)
    pipe = gradhomog.pipeline("lra(alpha=1, weighted=false)")
    pipe.combine(rows)
    later = pipe.homogenize(rows[1:], slots=[1, 2])
    assert later.measured["lra"]["weights"] == [8, 4]
    assert pipe.state_dict()["0:lra"]["weights"] == {"0": 1, "1": 8, "2": 4}


@pytest.mark.parametrize("zero", [0, 1])
def test_a_zero_row_changes_no_weight_of_its_own_and_a_zero_primary_row_changes_none(zero):
    rows = torch.tensor([[8.0, 0.0], [1.0, 1.0], [2.0, 2.0]], dtype=torch.float64)
    pipe = gradhomog.pipeline("lra(alpha=1, weighted=false)")
    pipe.combine(rows)
    rows[zero] = 0
    rows[2] *= 2
    assert pipe.homogenize(rows).measured["lra"]["weights"] == ([1, 8, 4] if zero == 0 else [1, 8, 2])


SIZES = {"weight": (4, 3), "bias": (4,), "scalar": ()}


def steps(count, tasks=3):
    scales = torch.tensor([1.0, 30.0, 0.01], dtype=torch.float64)[:tasks]
    for step in range(count):
        yield {
            name: normal(tasks, *size, seed=10 * step + index) * scales.reshape(-1, *[1] * len(size)) * (index + 1)
            for index, (name, size) in enumerate(SIZES.items())
        }


def metabalance_loop(history, relax, beta, strategy="both"):
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
    expected = metabalance_loop(history, relax, beta, strategy)
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
    with pytest.raises(
        NonfiniteError, match=r"too large for .*'metabalance'.*the largest entry of a row is 1\.0e\+200"
    ):
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
