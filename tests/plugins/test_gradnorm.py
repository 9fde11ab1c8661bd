"""GradNorm against algorithm 1 by hand, its fixed point, and the state of each key."""

import pytest
import torch

import gradhomog


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


def test_norms_can_be_measured_on_some_parameters_only():
    rows = {"encoder.w": torch.tensor([[1.0], [1.0]]), "head.w": torch.tensor([[9.0], [0.1]])}
    pipe = gradhomog.pipeline("gradnorm(alpha=0, parameters='encoder.*')")
    for _ in range(3):
        weights = pipe.homogenize(rows, torch.ones(2)).weights
    assert weights.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("options", ["alpha=2000", "lr=1e6", "alpha=2000, lr=1e6", ""])
@pytest.mark.parametrize("smallest", [0.0, 1e-300])
def test_steps_too_large_for_their_exponentials_and_losses_next_to_zero_leave_weights_finite(options, smallest):
    pipe = gradhomog.pipeline(f"gradnorm({options})")
    rows = torch.diag(torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64))
    first = [smallest or 2.0, 1.0, 1.0]
    for losses in (first, [1e10, 1.0, 3.0], [smallest, 0.5, 1.0], [smallest] * 3):
        weights = pipe.homogenize(rows, torch.tensor(losses, dtype=torch.float64)).weights
        assert weights.min() >= 0
        assert float(weights.mean()) == pytest.approx(1)
