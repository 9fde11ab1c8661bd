"""GradNorm against a double backward through the norms, its fixed point, and the state of each key."""

import pytest
import torch

import gradhomog
from gradhomog_plugins.gradnorm import weight_gradient


def double_backward(theta, make_losses, weights, first, alpha):
    """The paper's gradient: ∂/∂w of Σ|‖∇_θ w_i L_i‖ − target| by autograd through the norms, for a constant target."""
    weights = weights.clone().requires_grad_()
    losses = make_losses(theta)
    norms = torch.stack([torch.autograd.grad(w * loss, theta, create_graph=True)[0].norm()
                         for w, loss in zip(weights, losses, strict=True)])  # fmt: skip
    with torch.no_grad():
        rates = losses / first
        target = norms.mean() * (rates / rates.mean()) ** alpha
    return torch.autograd.grad((norms - target).abs().sum(), weights)[0]


@pytest.mark.parametrize("alpha", [0.0, 0.12, 1.5])
@pytest.mark.parametrize("seed", range(3))
def test_closed_form_gradient_equals_a_double_backward_in_float64(alpha, seed):
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(6, generator=generator, dtype=torch.float64, requires_grad=True)
    maps = torch.randn(4, 5, 6, generator=generator, dtype=torch.float64)
    scale = torch.tensor([1.0, 5.0, 0.1, 2.0], dtype=torch.float64)

    def make_losses(t):
        return (maps @ t).tanh().square().sum(dim=1) * scale

    weights = torch.rand(4, generator=generator, dtype=torch.float64) + 0.2
    first = torch.rand(4, generator=generator, dtype=torch.float64) + 0.5
    losses = make_losses(theta)
    rows = torch.stack([torch.autograd.grad(loss, theta, retain_graph=True)[0] for loss in losses])
    rates = losses.detach() / first
    targets = (rates / rates.mean()) ** alpha
    expected = double_backward(theta, make_losses, weights, first, alpha)
    torch.testing.assert_close(weight_gradient(weights, rows.norm(dim=1), targets), expected, rtol=1e-12, atol=1e-12)


def test_one_step_is_a_multiplicative_gradient_step_and_a_renormalization():
    # Algorithm 1 by hand. First losses are the first step's, so that in the second L̃ = (1, 2, 4) and r = 3/7 · L̃.
    norms = torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64)
    pipe = gradhomog.pipeline("gradnorm(alpha=1, lr=0.01)")
    first, second = torch.tensor([2.0, 1.0, 1.0]).double(), torch.tensor([2.0, 2.0, 4.0]).double()
    weights = torch.ones(3, dtype=torch.float64)
    for losses in (first, second, second):
        torch.testing.assert_close(pipe.homogenize(torch.diag(norms), losses).weights, weights)
        weighted, rates = weights * norms, losses / first
        mean = weighted.mean()
        gradient = torch.sign(weighted - mean * rates / rates.mean()) * norms
        weights = weights * torch.exp(-0.01 * weights * gradient / mean)
        weights = 3 * weights / weights.sum()


@pytest.mark.parametrize(("ratio", "steps"), [(4, 150), (100, 300), (1e5, 600)])
def test_with_alpha_zero_the_weighted_norms_become_equal_from_any_ratio(ratio, steps):
    norms = torch.tensor([ratio, 1.0], dtype=torch.float64)
    pipe = gradhomog.pipeline("gradnorm(alpha=0)")
    for _ in range(steps):
        result = pipe.homogenize(torch.diag(norms), torch.ones(2))
    weighted = result.weights * norms
    assert 0.9 < float(weighted[0] / weighted[1]) < 1.1


def test_domains_keep_their_proportion_to_domains_that_are_not_in_the_batch():
    pipe = gradhomog.pipeline("gradnorm(alpha=0, lr=0.05)")
    norms = {"huge": 8.0, "large": 4.0, "small": 1.0}
    generator = torch.Generator().manual_seed(0)
    for _ in range(600):
        pair = [list(norms)[i] for i in torch.randperm(3, generator=generator)[:2].tolist()]
        rows = torch.diag(torch.tensor([norms[name] for name in pair]))
        pipe.combine(rows, losses=[1.0, 1.0], domains=pair)
    rows, names = torch.diag(torch.tensor(list(norms.values()))), list(norms)
    weighted = pipe.homogenize(rows, torch.ones(3), domains=names).weights * torch.tensor(list(norms.values()))
    assert float(weighted.max() / weighted.min()) < 1.3


def test_weights_stay_positive_and_average_to_one_under_a_huge_rate():
    generator = torch.Generator().manual_seed(0)
    pipe = gradhomog.pipeline("gradnorm(lr=5)")
    for _ in range(50):
        rows = torch.randn(4, 6, generator=generator, dtype=torch.float64) * torch.logspace(-3, 3, 4)[:, None]
        weights = pipe.homogenize(rows, torch.rand(4, generator=generator) + 0.1).weights
        assert float(weights.min()) > 0
        assert abs(float(weights.mean()) - 1) < 1e-12


def test_norms_can_be_measured_on_some_parameters_only():
    rows = {"encoder.w": torch.tensor([[1.0], [1.0]]), "head.w": torch.tensor([[9.0], [0.1]])}
    pipe = gradhomog.pipeline("gradnorm(alpha=0, parameters='encoder.*')")
    for _ in range(3):
        weights = pipe.homogenize(rows, torch.ones(2)).weights
    assert weights.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("options", ["alpha=2000", "lr=1e6", "alpha=2000, lr=1e6"])
def test_steps_too_large_for_their_exponentials_leave_weights_finite(options):
    pipe = gradhomog.pipeline(f"gradnorm({options})")
    rows = torch.diag(torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64))
    for losses in ([2.0, 1.0, 1.0], [0.1, 1.0, 3.0], [0.0, 0.5, 1.0], [0.0, 0.0, 0.0]):
        weights = pipe.homogenize(rows, losses=losses).weights
        assert torch.isfinite(weights).all()
        assert weights.min() >= 0
        assert float(weights.mean()) == pytest.approx(1)


def test_a_first_loss_next_to_zero_leaves_the_weights_finite():
    pipe = gradhomog.pipeline("gradnorm")
    for losses in ([1e-300, 1.0], [1e10, 1.0], [1e10, 0.5]):
        weights = pipe.homogenize(torch.eye(2), torch.tensor(losses, dtype=torch.float64)).weights
        assert all(0 < weight < 2 for weight in weights.tolist())
