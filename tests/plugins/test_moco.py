"""MoCo against its recursion written out on the vectors, MGDA as its limit, and the effect of noise on both."""

import pytest
import scipy.optimize
import torch

import gradhomog
from gradhomog import OptionError
from gradhomog_plugins.moco import projected_step


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def onto_simplex(values):
    low, high = float(values.min()) - 1, float(values.max())
    threshold = scipy.optimize.brentq(lambda t: float((values - t).clamp_min(0).sum()) - 1, low, high, xtol=1e-15)
    return (values - threshold).clamp_min(0)


def recursion(steps, beta, beta_decay, gamma, gamma_decay, rho, relative, paper):
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
        found = pipe.combine({"a": rows[:, :4].reshape(4, 2, 2), "b": rows[:, 4:]})
    expected = recursion(steps, **options, relative=relative, paper=scale == "paper")
    torch.testing.assert_close(torch.cat([found["a"].flatten(), found["b"]]), expected, rtol=1e-9, atol=1e-10)


def test_on_constant_rows_it_converges_to_the_shortest_vector():
    rows = normal(4, 6) * torch.tensor([1.0, 3.0, 0.5, 1.0], dtype=torch.float64)[:, None] + 0.3
    pipe = gradhomog.pipeline("moco(gamma=0.5, gamma_decay=0)")
    for _ in range(300):
        found = pipe.combine(rows)
    torch.testing.assert_close(found, gradhomog.pipeline("mgda").combine(rows), rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_under_noise_it_is_nearer_to_the_shortest_vector_than_mgda_on_average():
    truth = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]], dtype=torch.float64)
    shortest = gradhomog.pipeline("mgda").combine(truth)
    noise = [0.8 * normal(2, 3, seed=seed) for seed in range(600)]
    ours, mgda = gradhomog.pipeline("moco(gamma=0.5)"), gradhomog.pipeline("mgda")
    followed = [ours.combine(truth + each) for each in noise][300:]
    answered = [mgda.combine(truth + each) for each in noise]
    bias = (torch.stack(answered).mean(0) - shortest).norm()
    assert float((torch.stack(followed).mean(0) - shortest).norm()) < 0.25 * float(bias)
    assert float((followed[-1] - shortest).norm()) < 0.25 * float((torch.stack(answered) - shortest).norm(dim=1).mean())


def test_a_weight_of_zero_can_grow_again():
    large, small = torch.diag(torch.tensor([9.0, 1.0])), torch.diag(torch.tensor([1.0, 9.0]))
    pipe = gradhomog.pipeline("moco(beta=1, beta_decay=0, gamma=1, gamma_decay=0)")
    pipe.combine(large)
    assert pipe.state_dict()["0:moco"]["weights"] == pytest.approx({"0": 0.0, "1": 2.0}, abs=0.05)
    for _ in range(5):
        found = pipe.combine(small)
    torch.testing.assert_close(found, torch.tensor([81 / 82, 9 / 82]), rtol=0.05, atol=0.01)


def test_identical_rows_give_that_row_and_in_the_papers_scale_its_uncorrected_average():
    row = normal(1, 5)
    mean, paper = gradhomog.pipeline("moco"), gradhomog.pipeline("moco(beta_decay=0, scale='paper')")
    for count in range(1, 4):
        torch.testing.assert_close(mean.combine(row.repeat(3, 1)), row[0])
        torch.testing.assert_close(paper.combine(row.repeat(3, 1)), (1 - 0.5**count) * row[0])


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


def test_two_tasks_of_one_domain_share_a_weight_and_an_average():
    pipe = gradhomog.pipeline("moco(beta=0.5, beta_decay=0, gamma=0.2)")
    rows = torch.tensor([[5.0, 0.0], [0.0, 5.0], [1.0, 1.0]], dtype=torch.float64)
    pipe.combine(rows, domains=["a", "a", "b"])
    state = pipe.state_dict()["0:moco"]
    torch.testing.assert_close(state["averages"][""]["a"], rows[:2].mean(0))
    assert state["weight_sums"] == {"a": 0.5, "b": 0.5}  # updated once
    assert state["counts"] == {"a": 1, "b": 1}
    assert state["weights"]["a"] * 2 + state["weights"]["b"] == pytest.approx(3)
    assert state["weights"]["a"] < 1 < state["weights"]["b"]


def test_a_direction_overwritten_by_the_caller_does_not_change_the_averages():
    rows = normal(3, 6)
    pipe, other = gradhomog.pipeline("moco"), gradhomog.pipeline("moco")
    pipe.combine(rows).zero_()
    other.combine(rows)
    assert torch.equal(pipe.combine(rows), other.combine(rows))


def test_rows_of_other_names_or_shapes_restart_the_state():
    pipe, rows = gradhomog.pipeline("moco(gamma=0)"), normal(2, 6)
    pipe.combine(normal(2, 4, seed=3))
    torch.testing.assert_close(pipe.combine(rows), rows.mean(0))


def test_two_tasks_of_one_domain_may_be_swapped():
    pipes = [gradhomog.pipeline("moco(gamma=0.5)") for _ in range(2)]
    for seed in range(3):
        rows = normal(3, 6, seed=seed)
        first = pipes[0].combine(rows, domains=["a", "a", "b"])
        torch.testing.assert_close(pipes[1].combine(rows[[1, 0, 2]], domains=["a", "a", "b"]), first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_after_a_step_whose_inner_products_overflow_every_later_step_works(dtype):
    pipe, fresh = gradhomog.pipeline("moco"), gradhomog.pipeline("moco")
    rows = normal(3, 4, dtype=dtype)
    for each in (pipe, fresh):
        each.combine(rows)
    too_long = torch.full((3, 4), 1e300 if dtype == torch.float64 else torch.inf, dtype=dtype)
    with pytest.raises(gradhomog.GradhomogError, match=r"overflow|not finite"):
        pipe.combine(too_long)
    for seed in range(3):
        later = normal(3, 4, seed=seed, dtype=dtype)
        assert torch.equal(pipe.combine(later), fresh.combine(later))


def test_rows_without_parameters_are_followed():
    pipe = gradhomog.pipeline("moco")
    for _ in range(3):
        assert pipe.combine(torch.zeros(3, 0)).shape == (0,)


def test_half_precision_rows_are_averaged_in_float32():
    pipe = gradhomog.pipeline("moco(beta=0.001, beta_decay=0)")
    for _ in range(2):
        assert pipe.combine(torch.ones(2, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert pipe.state_dict()["0:moco"]["averages"][""]["0"].dtype == torch.float32


def test_the_step_of_the_weights_is_differentiable_runs_under_vmap_and_compiles():
    weights, inner = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([1.0, 0.4, 0.2]).double()
    size = torch.tensor(2.0).double()
    weights.requires_grad_(), inner.requires_grad_()
    assert torch.autograd.gradcheck(lambda w, i: projected_step(w, i, size, 0.1, 0.3), (weights, inner))
    batch = torch.stack([weights, weights.flip(0)]), torch.stack([inner, 2 * inner])
    mapped = torch.func.vmap(lambda w, i: projected_step(w, i, size, 0.1, 0.3))(*batch)
    assert torch.equal(mapped[0], projected_step(weights, inner, size, 0.1, 0.3))
    compiled = torch.compile(projected_step, fullgraph=True, backend="eager")
    assert torch.equal(compiled(weights, inner, size, 0.1, 0.3), mapped[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("beta=0", "`beta` must be"),
        ("beta=1.5", "`beta` must be"),
        ("beta_decay=-1", "`beta_decay` must be"),
        ("gamma=-1", "`gamma` must be"),
        ("gamma_decay=inf", "`gamma_decay` must be"),
        ("rho=-0.1", "`rho` must be"),
    ],
)
def test_options_out_of_range_raise(options, message):
    with pytest.raises(OptionError, match=message):
        gradhomog.pipeline(f"moco({options})").combine(torch.eye(2))
