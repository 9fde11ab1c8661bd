"""FAMO against the paper's second look at the losses, TorchJD's scalarizer, and its fixed point."""

from __future__ import annotations

import pytest
import torch
import torchjd.scalarization

import gradhomog
from gradhomog import NotDifferentiableError, OptionError
from gradhomog_plugins.famo import first_order_change, logit_slopes
from gradhomog_plugins.famo import weights as weights_of
from tests.plugins.from_losses import assert_pure, gradient_of, quadratics, rows_and_losses, weights


class Paper:
    """The authors' code on a full batch: softmax by autograd, torch's Adam, the losses once more after the step."""

    def __init__(self, tasks, lr=0.025, weight_decay=0.0):
        self.logits = torch.zeros(tasks, dtype=torch.float64, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.logits], lr=lr, weight_decay=weight_decay)

    def direction(self, losses_of, theta):
        def combined(losses):
            shares = torch.softmax(self.logits.detach(), 0)
            return (shares * losses.log()).sum() / (shares / losses).sum().detach()

        return gradient_of(combined, losses_of, theta)

    def update(self, before, after):
        change = before.log() - after.log()
        self.logits.grad = torch.autograd.grad(torch.softmax(self.logits, 0), self.logits, change)[0]
        self.optimizer.step()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_with_the_next_steps_losses_a_full_batch_gives_torchjds_directions(weight_decay):
    theta, losses_of = quadratics()
    lowest = torch.tensor([0.1, 0.2, 0.0, 0.3], dtype=torch.float64)
    theirs = torchjd.scalarization.FAMO(4, lowest, lr=0.05, weight_decay=weight_decay).double()
    pipe = gradhomog.pipeline(
        f"famo(change='next_step', lr=0.05, weight_decay={weight_decay}, lowest=[0.1, 0.2, 0, 0.3])"
    )
    for _ in range(30):
        rows, losses = rows_and_losses(losses_of, theta)
        expected = gradient_of(theirs, losses_of, theta)
        torch.testing.assert_close(pipe.combine(rows, losses), expected, rtol=1e-6, atol=1e-8)  # their 1e-8 in D
        theta = theta - 0.02 * expected
        theirs.update(losses_of(theta))


def test_the_gramian_tells_what_the_papers_second_look_at_the_losses_tells_after_a_small_step():
    spreads = []
    for weight_decay in (0.0, 1e-5, 1e-4):
        theta, losses_of = quadratics()
        paper = Paper(4, weight_decay=weight_decay)
        pipe = gradhomog.pipeline(f"famo(weight_decay={weight_decay}, decrease=1e-4)")
        for _ in range(60):
            rows, losses = rows_and_losses(losses_of, theta)
            expected = paper.direction(losses_of, theta)
            torch.testing.assert_close(pipe.combine(rows, losses), expected, rtol=1e-3, atol=1e-3)
            # The rate at which tasks that all agree would fall by 1e-4: rate · c · Σ_j z_j ‖∇log L_j‖² = 1e-4.
            shares = torch.softmax(paper.logits.detach(), 0)
            rate = 1e-4 * float((shares / losses).sum() / (shares * (rows / losses[:, None]).square().sum(1)).sum())
            step = theta - rate * expected
            paper.update(losses, losses_of(step))
            theta = step
        spreads.append(float(shares.max() / shares.min()))
    assert spreads[0] > 1.2 * spreads[1] > 1.4 * spreads[2] > 1.4  # weights moved, and the decay is not lost in it


def test_with_a_fixed_rate_the_factor_between_the_two_is_one_that_adam_hardly_sees():
    theta, losses_of = quadratics()
    paper, pipe = Paper(4), gradhomog.pipeline("famo(weight_decay=0)")
    for _ in range(60):
        rows, losses = rows_and_losses(losses_of, theta)
        expected = paper.direction(losses_of, theta)
        torch.testing.assert_close(pipe.combine(rows, losses), expected, rtol=0.02, atol=0.005)
        step = theta - 1e-4 * expected
        paper.update(losses, losses_of(step))
        theta = step


def test_of_decrease_and_weight_decay_only_the_ratio_counts():
    theta, losses_of = quadratics()
    rows, losses = rows_and_losses(losses_of, theta)
    one, other = (gradhomog.pipeline(f"famo(decrease={d}, weight_decay={g})") for d, g in ((0.01, 1e-3), (1.0, 0.1)))
    for _ in range(20):
        torch.testing.assert_close(one.combine(rows, losses), other.combine(rows, losses), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("exponent", [-18, -9, 9, 18])
def test_a_common_factor_of_the_rows_changes_no_weight_over_thirty_steps(exponent):
    theta, losses_of = quadratics()
    rows, losses = rows_and_losses(losses_of, theta)
    plain, scaled = gradhomog.pipeline("famo"), gradhomog.pipeline("famo")
    for _ in range(30):
        one, other = plain.combine(rows, losses), scaled.combine(rows * 10.0**exponent, losses)
        torch.testing.assert_close(other / 10.0**exponent, one, rtol=1e-9, atol=1e-12)


def test_at_rest_all_losses_fall_at_the_same_relative_rate():
    norms, losses = torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64), torch.tensor([1.0, 2.0, 0.3])
    pipe = gradhomog.pipeline("famo(weight_decay=0, lr=0.1)")
    for _ in range(400):
        direction = pipe.combine(torch.diag(norms), losses)
    rates = norms * direction / losses
    torch.testing.assert_close(rates, rates.mean().expand(3), rtol=0.01, atol=0)


def test_tasks_that_are_equal_up_to_rounding_keep_equal_weights():
    rows = torch.randn(3, 4000, generator=torch.Generator().manual_seed(0))
    rows = torch.nn.functional.normalize(rows, dim=1)[:1] * (1 + 1e-7 * torch.arange(3.0))[:, None]
    pipe = gradhomog.pipeline("famo")
    for _ in range(5):
        found = pipe.homogenize(rows, torch.ones(3)).weights
    assert found.tolist() == pytest.approx([1, 1, 1], abs=1e-9)


def test_the_weights_are_a_convex_combination_of_inverse_losses_and_the_first_are_the_geometric_means():
    losses = [0.5, 2.0, 8.0]
    torch.testing.assert_close(weights("famo", losses), weights("geometric_mean", losses))
    found = weights("famo(lr=0.3)", losses, steps=20)
    assert float(found.min()) > 0
    assert float(found.mean()) == pytest.approx(1)


def test_losses_at_their_lowest_and_rows_of_zero_are_finite():
    assert weights("famo", [0.0, 0.0], steps=3).tolist() == pytest.approx([1, 1])
    assert weights("famo", [0.0, 1.0], steps=3).tolist() == pytest.approx([2, 0], abs=1e-6)
    pipe = gradhomog.pipeline("famo")
    for rows in (torch.zeros(2, 3), torch.tensor([[0.0, 0.0], [1.0, 1.0]])):
        for _ in range(3):
            assert torch.isfinite(pipe.combine(rows, torch.tensor([1.0, 2.0]))).all()


def test_by_domain_the_next_losses_move_those_that_were_seen_before_and_no_others():
    pipe = gradhomog.pipeline("famo(change='next_step', key='domain', lr=0.1, weight_decay=0)")
    weights(pipe, [1.0, 1.0], domains=["a", "b"])
    weights(pipe, [1.0, 7.0], domains=["c", "d"])  # neither was seen before: nothing moves
    assert weights(pipe, [1.0, 0.5, 1.0], domains=["a", "b", "new"]).tolist() == pytest.approx(
        (3 * torch.softmax(torch.tensor([0.1, -0.1 + torch.tensor(2.0).log(), 0.0]), 0)).tolist(), rel=1e-5
    )  # Adam's first step is as long as its rate: up for the one that stood still, down for the one that fell


def test_the_next_steps_losses_need_no_gramian_and_are_not_differentiated():
    (next_step,) = gradhomog.pipeline("famo(change='next_step')")
    (first_order,) = gradhomog.pipeline("famo")
    assert (next_step.needs, first_order.needs) == ({"losses"}, {"losses", "gramian"})
    rows = torch.eye(2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(NotDifferentiableError, match="Use `change='first_order'`"):
        gradhomog.pipeline("famo(change='next_step')").combine(rows, [1.0, 1.0], create_graph=True)


@pytest.mark.parametrize(
    ("text", "losses", "message"),
    [
        ("famo(lr=0)", [1.0], "`lr` must be positive"),
        ("famo(decrease=0)", [1.0], "`decrease` must be positive"),
        ("famo(weight_decay=-1)", [1.0], "`weight_decay` must be finite and not negative"),
        ("famo(lowest=[0, 0.5])", [1.0, 0.4], r"famo: losses must not be below `lowest`; task 1 has 0\.4"),
        ("famo(lowest=[0])", [1.0, 0.4], "famo: `lowest` must hold one number per task"),
        ("famo(lowest=inf)", [1.0], "famo: `lowest` must be finite"),
        ("famo(change='second_look')", [1.0], "`change` must be one of"),
        ("famo(key='domain')", [1.0], "needs to know the domain"),
    ],
)  # fmt: skip
def test_what_has_no_rate_or_is_out_of_range_is_refused(text, losses, message):
    with pytest.raises(OptionError, match=message):
        weights(text, losses)


def test_weights_change_and_slopes_are_pure_functions():
    gaps, logits = torch.tensor([0.5, 2.0, 1.2], dtype=torch.float64), torch.tensor([0.1, -0.4, 0.3]).double()
    rows = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shares = torch.softmax(logits, 0)
    assert_pure(weights_of, gaps, logits)
    assert_pure(lambda r, g: first_order_change(r @ r.T, g, shares), rows, gaps)
    assert_pure(logit_slopes, shares, gaps)


@pytest.mark.parametrize("change", ["first_order", "next_step"])
@pytest.mark.parametrize("size", [1e-300, 1e-155, 1e308])
def test_a_common_factor_of_the_losses_changes_nothing_however_extreme(change, size):
    losses, rows = torch.tensor([0.9, 0.2, 0.5], dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    pipes = [gradhomog.pipeline(f"famo(change='{change}', lr=0.5)") for _ in range(2)]
    for step in range(4):
        now = losses * (1 - 0.1 * step * torch.arange(3))
        expected, found = (p.homogenize(rows, now * s).weights for p, s in zip(pipes, (1.0, size), strict=True))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
