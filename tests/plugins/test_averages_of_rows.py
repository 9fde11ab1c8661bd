"""MoCo, MultiAdam, DB-MTL and ExcessMTL against recursions written out on the vectors, and the state of their keys."""

import pytest
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st

import gradhomog
from gradhomog import OptionError
from gradhomog_plugins.moco import project_onto_simplex
from tests.plugins.rows import combine_in_tensors, normal


def onto_simplex(values):
    low, high = float(values.min()) - 1, float(values.max())
    threshold = scipy.optimize.brentq(lambda t: float((values - t).clamp_min(0).sum()) - 1, low, high, xtol=1e-15)
    return (values - threshold).clamp_min(0)


def moco(steps, beta, beta_decay, gamma, gamma_decay, rho, relative, paper):
    """The paper's algorithm 1 on the vectors: the direction of the last step."""
    tracked, lost = torch.zeros_like(steps[0]), 1.0
    weights = torch.full((len(steps[0]),), 1 / len(steps[0]), dtype=torch.float64)
    for count, rows in enumerate(steps, start=1):
        rate = beta / count**beta_decay
        tracked = tracked - rate * (tracked - rows)
        lost *= 1 - rate
        corrected = tracked / (1 - lost)
        direction = weights @ (tracked if paper else corrected)
        square = corrected @ corrected.T if relative else tracked @ tracked.T
        size = square.trace() / len(rows) if relative else 1.0
        gradient = (square / size + rho * torch.eye(len(rows), dtype=torch.float64)) @ weights
        weights = onto_simplex(weights - gamma / count**gamma_decay * gradient)
    return direction


@pytest.mark.parametrize("scale", ["mean", "paper"])
@pytest.mark.parametrize(("relative", "gamma", "rho"), [(True, 0.7, 0.0), (False, 0.02, 0.0), (True, 0.3, 0.5)])
@pytest.mark.parametrize(("beta", "beta_decay", "gamma_decay"), [(0.5, 0.5, 0.5), (1.0, 0.0, 0.0)])
def test_it_is_algorithm_1_written_out(scale, relative, gamma, rho, beta, beta_decay, gamma_decay):
    options = {"beta": beta, "beta_decay": beta_decay, "gamma": gamma, "gamma_decay": gamma_decay, "rho": rho}
    pipe = gradhomog.pipeline([("moco", {**options, "relative": relative, "scale": scale})])
    steps = [normal(4, 6, seed=seed) + 0.5 for seed in range(8)]
    for rows in steps:
        found = combine_in_tensors(pipe, rows)
    expected = moco(steps, **options, relative=relative, paper=scale == "paper")
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_state_by_domain_follows_the_domain_and_keeps_its_proportion():
    rows = torch.diag(torch.tensor([4.0, 1.0, 1.0], dtype=torch.float64))
    pipe = gradhomog.pipeline("moco(gamma=0.5)")
    for _ in range(3):
        pipe.combine(rows, domains=["big", "small", "other"])
    held = dict(pipe.state_dict()["0:moco"]["weights"])
    pipe.combine(rows[:2].flip(0), domains=["small", "big"])
    after = pipe.state_dict()["0:moco"]["weights"]
    assert after["other"] == held["other"]
    assert after["small"] + after["big"] == pytest.approx(held["small"] + held["big"])
    assert after["small"] >= held["small"] > held["big"] >= after["big"]


# -- the projection of its weights -----------------------------------------------------------------------------------

vectors = st.lists(st.floats(-5, 5), min_size=1, max_size=7).map(lambda v: torch.tensor(v, dtype=torch.float64))


@given(vectors)
def test_the_projection_is_on_the_simplex_and_no_point_of_it_is_nearer(values):
    found = project_onto_simplex(values)
    assert (found >= 0).all()
    assert abs(float(found.sum()) - 1) < 1e-12
    # x is nearest if and only if ⟨e − x, v − x⟩ ≤ 0 for every corner e of the simplex.
    towards = torch.eye(len(values), dtype=torch.float64) - found
    assert (towards @ (values - found) <= 1e-12).all()


SCALES = torch.tensor([1e3, 1.0, 1e-3], dtype=torch.float64)[:, None]


def steps(count, params=6):
    return [SCALES * (normal(3, params, seed=seed) + 0.3) for seed in range(count)]


def adam_steps(history, beta1, beta2):
    """Return the last step of one Adam without ε for each task and the roots of its second moments."""
    quotients, roots = [], []
    for task in range(len(history[0])):
        variable = torch.zeros(history[0].shape[1], dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([variable], lr=1.0, betas=(beta1, beta2), eps=0.0)
        for rows in history:
            before, variable.grad = variable.detach().clone(), rows[task].clone()
            optimizer.step()
        quotients.append(before - variable.detach())
        roots.append((optimizer.state[variable]["exp_avg_sq"] / (1 - beta2 ** len(history))).sqrt())
    return torch.stack(quotients), torch.stack(roots)


@pytest.mark.parametrize(("beta1", "beta2"), [(0.99, 0.99), (0.9, 0.999), (0.0, 0.99), (0.5, 0.0)])
def test_in_the_papers_units_it_is_the_mean_of_one_adam_step_per_task(beta1, beta2):
    pipe = gradhomog.pipeline([("multiadam", {"beta1": beta1, "beta2": beta2, "units": "paper"})])
    history = steps(6)
    for rows in history:
        found = combine_in_tensors(pipe, rows)
    expected = adam_steps(history, beta1, beta2)[0].mean(0)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("beta1", [0.0, 0.9])
def test_by_default_every_coordinate_is_multiplied_by_the_root_mean_square_over_the_tasks(beta1):
    pipe, history = gradhomog.pipeline([("multiadam", {"beta1": beta1})]), steps(5)
    for rows in history:
        found = pipe.combine(rows)
    quotients, roots = adam_steps(history, beta1, 0.99)
    torch.testing.assert_close(found, quotients.mean(0) * roots.square().mean(0).sqrt(), rtol=1e-9, atol=1e-9)


def db_mtl(steps, beta, sigma):
    """The last direction of LibMTL's DB_MTL, without its epsilons: steps are pairs of rows and losses."""
    average = torch.zeros_like(steps[0][0])
    for count, (rows, losses) in enumerate(steps, start=1):
        logarithmic = rows / torch.as_tensor(losses, dtype=rows.dtype)[:, None]
        average = logarithmic + beta / count**sigma * (average - logarithmic)
    norms = average.norm(dim=1)
    return (norms.max() / norms) @ average


def history(count, tasks=3, params=7):
    return [
        (normal(tasks, params, seed=s) * 10.0 ** (s % 3), (normal(tasks, seed=50 + s).abs() + 0.1))
        for s in range(count)
    ]


@pytest.mark.parametrize(("beta", "sigma"), [(0.9, 0.0), (0.5, 0.5), (0.0, 0.0)])
@pytest.mark.parametrize("steps", [1, 2, 6])
def test_at_the_papers_scale_it_is_the_reference_codes_recursion(beta, sigma, steps):
    pipe = gradhomog.pipeline(f"db_mtl(beta={beta}, sigma={sigma}, scale='paper')")
    shown = history(steps)
    for rows, losses in shown:
        found = pipe.combine(rows, losses=losses)
    torch.testing.assert_close(found, db_mtl(shown, beta, sigma), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_the_scales_differ_in_length_alone(sigma):
    paper = gradhomog.pipeline(f"db_mtl(sigma={sigma}, scale='paper')")
    mean = gradhomog.pipeline(f"db_mtl(sigma={sigma})")
    lost = 1.0
    for count, (rows, losses) in enumerate(history(5), start=1):
        lost *= 0.9 / count**sigma
        expected = paper.combine(rows, losses=losses) * losses.min() / 3 / (1 - lost)
        torch.testing.assert_close(mean.combine(rows, losses=losses), expected, rtol=1e-9, atol=1e-12)


def test_without_log_no_losses_are_needed_and_rows_are_averaged_as_they_are():
    pipe, ones = gradhomog.pipeline("db_mtl(log=false)"), gradhomog.pipeline("db_mtl")
    for rows, _ in history(3):
        found = pipe.combine(rows)
        torch.testing.assert_close(found, ones.combine(rows, losses=torch.ones(3)), rtol=1e-12, atol=0)


def test_a_task_with_a_loss_of_zero_or_no_gradient_is_ignored_until_it_has_a_gradient():
    rows = torch.eye(3, dtype=torch.float64)
    pipe = gradhomog.pipeline("db_mtl")
    torch.testing.assert_close(pipe.combine(rows, losses=[1.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 1.0]).double() / 3)
    later = pipe.combine(rows, losses=[1.0, 1.0, 1.0])
    torch.testing.assert_close(later, torch.ones(3, dtype=torch.float64) / 3)
    assert gradhomog.pipeline("db_mtl").combine(rows, losses=[0.0, 0.0, 0.0]).tolist() == [0.0, 0.0, 0.0]
    rows[1] = 0
    torch.testing.assert_close(gradhomog.pipeline("db_mtl").combine(rows, losses=[1.0] * 3), rows.mean(0))


def test_rows_that_a_loss_near_zero_makes_too_long_raise_and_change_no_state():
    pipe = gradhomog.pipeline("db_mtl(scale='paper')")
    with pytest.raises(gradhomog.GradhomogError, match="db_mtl"):
        pipe.combine(torch.eye(2), losses=[1.0, 1e-100], domains=["a", "b"])
    assert pipe.state_dict()["0:db_mtl"]["counts"] == {}


@pytest.mark.parametrize(("row", "loss"), [(1.0, 1e-100), (1e-40, 1e-40)], ids=["too long", "subnormal"])
def test_averages_that_a_loss_near_zero_has_made_useless_are_restarted(row, loss):
    # The smallest loss scales the rows; in the next step another loss is the smallest, and the rows overflowed.
    pipe = gradhomog.pipeline("db_mtl")
    pipe.combine(torch.tensor([[1.0, 0.0], [0.0, row]]), losses=[1.0, loss], domains=["a", "b"])
    found = pipe.combine(torch.eye(2), losses=[1.0, 2.0], domains=["a", "b"])
    assert torch.equal(found, gradhomog.pipeline("db_mtl").combine(torch.eye(2), losses=[1.0, 2.0]))
    assert pipe.state_dict()["0:db_mtl"]["counts"] == {"a": 1, "b": 1}


def test_rows_that_cannot_have_equal_lengths_in_their_dtype_raise_with_both_tasks():
    with pytest.raises(OptionError, match=r"norms from 1e-40 \(task 'b'\) to 1 \(task 'a'\)\. .* near zero\."):
        gradhomog.pipeline("db_mtl").combine(
            torch.tensor([[1.0, 0.0], [0.0, 1e-40]]), losses=[1.0, 1.0], domains=["a", "b"]
        )


def test_half_precision_rows_may_be_longer_than_their_largest_number():
    rows = torch.full((2, 4096), 2000.0, dtype=torch.float16)  # 128 000 long, and 65 504 is the largest
    found = gradhomog.pipeline("db_mtl").combine(rows, losses=[1.0, 1.0])
    torch.testing.assert_close(found, rows[0], rtol=1e-2, atol=0)


def excess_mtl(steps, lr):
    """The authors' code without its epsilon: the weights, of sum N, after the last step."""
    squares, weights, first = torch.zeros_like(steps[0]), torch.ones(len(steps[0]), dtype=torch.float64), None
    for rows in steps:
        squares = squares + rows**2
        excess = (rows**2 / squares.sqrt()).sum(1)
        if first is None:
            first = excess
        else:
            weights = weights * torch.exp(lr * excess / first)
            weights = weights / weights.sum() * len(weights)
    return weights


@pytest.mark.parametrize("lr", [0.01, 0.5])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_it_is_the_authors_recursion_with_the_weights_of_the_step_before(lr, count):
    pipe = gradhomog.pipeline([("excess_mtl", {"lr": lr})])
    steps = [normal(3, 8, seed=s) * (1 + 0.2 * torch.arange(3.0).double()[:, None] * s) for s in range(count)]
    last = normal(3, 8, seed=99)
    for rows in (*steps, last):
        found = combine_in_tensors(pipe, rows)
    expected = excess_mtl(steps, lr) @ last / 3
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_the_first_step_moves_no_weight_however_many_parameters():
    rows, pipe = normal(4, 100_000, dtype=torch.float32), gradhomog.pipeline("excess_mtl")
    first, later = torch.tensor([1.0, 1.0, 1.0, 1.0]), torch.tensor([3.0, 1.0, 2.0, 0.1])
    assert torch.equal(pipe.homogenize(rows).weights.float(), first)
    assert torch.equal(pipe.homogenize(rows * later[:, None]).weights.float(), first)
    assert pipe.homogenize(rows).weights.argsort().tolist() == [3, 1, 2, 0]


def test_neither_a_tasks_own_size_nor_that_of_all_moves_a_weight():
    pipes = [gradhomog.pipeline("excess_mtl(lr=0.3)") for _ in range(3)]
    factors = [torch.ones(3), torch.full((3,), 2.0**59), torch.tensor([1.0, 2.0**-50, 2.0**40])]
    for step in range(5):
        rows = normal(3, 9, seed=step).float()
        found = [pipe.homogenize(rows * f[:, None]).weights for pipe, f in zip(pipes, factors, strict=True)]
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(found[2], found[0], rtol=1e-6, atol=0)


def test_a_task_without_gradient_so_far_keeps_its_weight_and_begins_when_it_has_one():
    rows = torch.eye(2, dtype=torch.float64)
    pipe = gradhomog.pipeline("excess_mtl(lr=0.5)")
    for _ in range(3):
        pipe.combine(torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64))
    state = pipe.state_dict()["0:excess_mtl"]
    assert list(state["first"]) == ["0"]
    pipe.combine(rows)
    assert pipe.state_dict()["0:excess_mtl"]["first"]["1"] == 1
    assert torch.isfinite(pipe.combine(rows)).all()


def test_a_task_whose_first_gradient_was_tiny_does_not_end_the_others_for_good():
    pipe = gradhomog.pipeline("excess_mtl(lr=1)")
    pipe.combine(torch.diag(torch.tensor([1e-6, 1.0])))
    for _ in range(3):
        pipe.combine(torch.eye(2))
    assert 0 < float(pipe.homogenize(torch.eye(2)).weights[1]) < 0.01
    for _ in range(60):  # it has converged
        weights = pipe.homogenize(torch.diag(torch.tensor([1e-9, 1.0]))).weights
    assert float(weights[1]) > 0.5
