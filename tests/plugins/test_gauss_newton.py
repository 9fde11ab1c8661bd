"""Gauss-Newton: a linear least-squares problem in one step, and the damping after rejected and accepted steps."""

import pytest
import torch

import gradhomog
from gradhomog import OptionError


def problem(residuals: int, params: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a Jacobian `[residuals, params]` and residuals of both signs."""
    generator = torch.Generator().manual_seed(seed)
    jacobian = torch.randn(residuals, params, generator=generator, dtype=torch.float64)
    return jacobian, torch.randn(residuals, generator=generator, dtype=torch.float64)


def step(jacobian, r, options="damping=1e-12", pipe=None):
    pipe = pipe or gradhomog.pipeline(f'gauss_newton({options}, scale="paper")')
    return pipe.combine(r[:, None] * jacobian, r.square() / 2)


@pytest.mark.parametrize("shape", [(8, 3), (3, 8), (5, 5)])
def test_a_damped_step_is_that_of_the_normal_equations(shape):
    jacobian, r = problem(*shape)
    damping = 0.1 * jacobian.square().sum()  # tr K = ‖J‖²
    normal = jacobian.T @ jacobian + damping * torch.eye(shape[1], dtype=torch.float64)
    torch.testing.assert_close(step(jacobian, r, "damping=0.1"), torch.linalg.solve(normal, jacobian.T @ r))


def test_one_step_of_sgd_with_rate_1_solves_a_linear_least_squares_problem():
    generator = torch.Generator().manual_seed(1)
    inputs, targets = (torch.randn(20, n, generator=generator, dtype=torch.float64) for n in (4, 1))
    model = torch.nn.Linear(4, 1).double()
    points = torch.cat([inputs, targets], 1)
    losses, rows = gradhomog.residual_rows([(lambda point: model(point[:4]) - point[4:], points)], model)
    direction = gradhomog.pipeline('gauss_newton(damping=1e-8, scale="paper")').combine(rows, losses)
    for name, parameter in model.named_parameters():
        parameter.grad = direction[name]
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    expected = torch.linalg.lstsq(torch.cat([inputs, torch.ones(20, 1, dtype=torch.float64)], 1), targets).solution
    torch.testing.assert_close(torch.cat([model.weight[0], model.bias]), expected[:, 0], rtol=1e-6, atol=1e-6)


def test_the_unit_of_a_residual_has_no_effect_as_the_damping_vanishes():
    jacobian, r = problem(4, 9)
    units = torch.tensor([1.0, 0.1, 10.0, -3.0], dtype=torch.float64)
    scaled = units[:, None] * jacobian, units * r
    torch.testing.assert_close(step(*scaled), step(jacobian, r), rtol=1e-6, atol=1e-6)
    damped = step(jacobian, r, "damping=1.0")
    assert (step(*scaled, "damping=1.0") - damped).norm() > 0.1 * damped.norm()


def test_a_residual_of_zero_takes_no_part():
    jacobian, r = problem(4, 9)
    r[2] = 0
    kept = [0, 1, 3]
    torch.testing.assert_close(step(jacobian, r, "damping=0.1"), step(jacobian[kept], r[kept], "damping=0.1"))
    assert step(jacobian, torch.zeros_like(r)).tolist() == [0.0] * 9


def test_the_damping_grows_for_the_same_losses_and_falls_for_others_also_after_loading():
    jacobian, r = problem(4, 6)
    pipe = gradhomog.pipeline('gauss_newton(damping=0.01, adaptive=true, scale="paper")')
    expected = [0.01, 0.04, 0.16, 0.16 / 3, 4 * 0.16 / 3]
    for factor, damping in zip([1, 1, 1, 0.5, 0.5], expected, strict=True):
        found = step(jacobian, factor * r, pipe=pipe)
        torch.testing.assert_close(found, step(jacobian, factor * r, f"damping={damping!r}"))
        loaded = gradhomog.pipeline('gauss_newton(damping=0.01, adaptive=true, scale="paper")')
        loaded.load_state_dict(pipe.state_dict())
        pipe = loaded


def test_in_a_minimum_where_every_step_is_undone_the_damping_stays_finite():
    """Seen: NaN from the method after 500 steps that did not decrease the losses, as in a solved problem."""
    jacobian, r = problem(4, 6)
    pipe = gradhomog.pipeline('gauss_newton(adaptive=true, scale="paper")')
    for _ in range(600):
        found = step(jacobian, r, pipe=pipe)
    assert 0 < float(found.norm()) < 1e-6 * float(r.norm())
    assert float(step(jacobian, 0.5 * r, pipe=pipe).norm()) > 2 * float(0.5 * found.norm())  # goes on from there


def test_a_negative_loss_raises_with_the_name_of_the_task():
    message = r"gauss_newton.*: losses must not be negative, because r = √\(2 L\); task 1 has -1.0"
    with pytest.raises(OptionError, match=message):
        gradhomog.pipeline("gauss_newton").combine(torch.eye(2), [1.0, -1.0])
