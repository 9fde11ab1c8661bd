"""ExcessMTL against the authors' recursion written out."""

import pytest
import torch

import gradhomog
from gradhomog import OptionError
from gradhomog_plugins.excess_mtl import updated_weights


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def recursion(steps, lr):
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
    for rows in steps:
        pipe.combine({"a": rows[:, :4].reshape(3, 2, 2), "b": rows[:, 4:]})
    last = normal(3, 8, seed=99)
    found = pipe.combine({"a": last[:, :4].reshape(3, 2, 2), "b": last[:, 4:]})
    expected = recursion(steps, lr) @ last / 3
    torch.testing.assert_close(torch.cat([found["a"].flatten(), found["b"]]), expected, rtol=1e-9, atol=1e-12)


def test_the_first_step_moves_no_weight_however_many_parameters():
    rows, pipe = normal(4, 100_000, dtype=torch.float32), gradhomog.pipeline("excess_mtl")
    first, later = torch.tensor([1.0, 1.0, 1.0, 1.0]), torch.tensor([3.0, 1.0, 2.0, 0.1])
    assert torch.equal(pipe.homogenize(rows).weights.float(), first)
    assert torch.equal(pipe.homogenize(rows * later[:, None]).weights.float(), first)
    assert pipe.homogenize(rows).weights.argsort().tolist() == [3, 1, 2, 0]


def test_of_two_tasks_the_one_that_has_converged_loses_weight():
    pipe = gradhomog.pipeline("excess_mtl(lr=0.05)")
    for step in range(100):
        weights = pipe.homogenize(torch.stack([0.9**step * normal(6, seed=step), normal(6, seed=200 + step)])).weights
    assert float(weights[0]) < 0.8 < 1.2 < float(weights[1])


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


def test_state_by_domain_follows_the_domain_and_keeps_its_proportion():
    pipe = gradhomog.pipeline("excess_mtl(lr=0.5)")
    rows = torch.diag(torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64))
    for factor in (1.0, 0.1):
        pipe.combine(rows * torch.tensor([1.0, 1.0, factor])[:, None].double(), domains=["a", "b", "c"])
    held = dict(pipe.state_dict()["0:excess_mtl"]["weights"])
    weights = pipe.homogenize(rows[:2], domains=["c", "a"]).weights
    assert float(weights[0]) < float(weights[1])
    after = pipe.state_dict()["0:excess_mtl"]["weights"]
    assert after["b"] == held["b"]
    assert after["a"] + after["c"] == pytest.approx(held["a"] + held["c"])


def test_two_tasks_of_one_domain_share_a_weight_and_rows_of_another_shape_start_anew():
    pipe = gradhomog.pipeline("excess_mtl(lr=0.5)")
    rows = normal(3, 5)
    for _ in range(3):
        weights = pipe.homogenize(rows, domains=["a", "a", "b"]).weights
    assert float(weights[0]) == float(weights[1]) != float(weights[2])
    pipe.combine(normal(2, 4), domains=["a", "b"])
    roots = pipe.state_dict()["0:excess_mtl"]["roots"][""]["b"]
    torch.testing.assert_close(roots, normal(2, 4)[1].abs())


def test_two_tasks_of_one_domain_may_be_swapped():
    pipes = [gradhomog.pipeline("excess_mtl(lr=0.5)") for _ in range(2)]
    for seed in range(3):
        rows = normal(3, 6, seed=seed)
        first = pipes[0].combine(rows, domains=["a", "a", "b"])
        torch.testing.assert_close(pipes[1].combine(rows[[1, 0, 2]], domains=["a", "a", "b"]), first)


def test_rows_without_parameters_keep_equal_weights():
    pipe = gradhomog.pipeline("excess_mtl")
    for _ in range(3):
        result = pipe.homogenize(torch.zeros(3, 0))
    assert result.weights.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_after_rows_near_the_largest_number_or_a_failed_step_every_later_step_works(dtype):
    pipe = gradhomog.pipeline("excess_mtl")
    pipe.combine(normal(3, 4, dtype=dtype))
    pipe.combine(torch.full((3, 4), 1e-9 * torch.finfo(dtype).max, dtype=dtype))  # 1e299 in float64
    with pytest.raises(gradhomog.GradhomogError):
        pipe.combine(torch.full((3, 4), torch.nan, dtype=dtype))
    for seed in range(3):
        assert bool(pipe.combine(normal(3, 4, seed=seed, dtype=dtype)).isfinite().all())


def test_the_step_of_the_weights_is_differentiable_runs_under_vmap_and_compiles():
    weights, excess = torch.tensor([0.5, 1.5, 1.0]).double(), torch.tensor([1.0, 0.2, 0.7]).double()
    weights.requires_grad_(), excess.requires_grad_()
    assert torch.autograd.gradcheck(lambda w, e: updated_weights(w, e, 0.3), (weights, excess))
    assert torch.autograd.gradgradcheck(lambda w, e: updated_weights(w, e, 0.3), (weights, excess))
    batch = torch.stack([weights, weights.flip(0)]), torch.stack([excess, 2 * excess])
    mapped = torch.func.vmap(lambda w, e: updated_weights(w, e, 0.3))(*batch)
    torch.testing.assert_close(mapped[0], updated_weights(weights, excess, 0.3))
    assert torch.equal(torch.compile(updated_weights, fullgraph=True, backend="eager")(weights, excess, 0.3), mapped[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [("lr=0", "`lr` must be"), ("lr=inf", "`lr` must be")],
)
def test_options_out_of_range_raise(options, message):
    with pytest.raises(OptionError, match=message):
        gradhomog.pipeline(f"excess_mtl({options})").combine(torch.eye(2))
