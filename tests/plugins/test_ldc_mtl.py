"""LDC-MTL against autograd and torch's Adam on the authors' loss, and its limits."""

import math

import pytest
import torch

import gradhomog
from tests.plugins.from_losses import gradient_of, quadratics, rows_and_losses, weights


def authors_loss(logits, losses, first, penalty, normalization):
    """The one loss that model and weights descend, as in the authors' code with a softmax of free parameters."""
    normalized = {"initial": losses / first, "log": (losses / first).log(), "none": losses}[normalization]
    weighted = torch.softmax(logits, dim=0) * normalized
    return weighted.sum() + penalty * (weighted[:-1] - weighted[1:]).abs().sum()


@pytest.mark.parametrize("normalization", ["initial", "log", "none"])
@pytest.mark.parametrize("penalty", [0.0, 0.3])
def test_twenty_steps_follow_the_authors_loss_with_a_separate_adam(normalization, penalty):
    theta, losses_of = quadratics()
    logits = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.02)
    text = f"ldc_mtl(penalty={penalty}, lr=0.02, bound=69, normalization='{normalization}', scale='paper')"
    pipe, first = gradhomog.pipeline(text), None
    for _ in range(20):
        rows, losses = rows_and_losses(losses_of, theta)
        first = losses if first is None else first

        def combined(values, logits=logits, first=first):
            return authors_loss(logits, values, first, penalty, normalization)

        found = pipe.combine(rows, losses)
        torch.testing.assert_close(found, gradient_of(combined, losses_of, theta), rtol=1e-6, atol=1e-9)
        optimizer.zero_grad()
        combined(losses).backward()
        optimizer.step()
        theta = theta - 0.05 * found


def test_the_penalty_gives_weight_to_the_task_that_has_fallen_least():
    pipe = gradhomog.pipeline("ldc_mtl(penalty=0.4)")
    weights(pipe, [1.0, 1.0, 1.0])
    found = weights(pipe, [0.5, 0.9, 0.7])
    torch.testing.assert_close(found, torch.tensor([0.6, 1.8, 0.6], dtype=torch.float64), rtol=1e-9, atol=0)


def test_without_penalty_the_weights_prefer_the_smallest_loss_up_to_the_bound():
    found = weights("ldc_mtl(penalty=0, lr=0.05, normalization='none')", [1.0, 2.0], steps=200)
    assert found.tolist() == pytest.approx([1.6, 0.4], rel=1e-6)
    found = weights(f"ldc_mtl(penalty=0, lr=0.05, bound={math.log(3)}, normalization='none')", [1.0, 2.0], steps=200)
    assert found.tolist() == pytest.approx([1.8, 0.2], rel=1e-6)


def test_the_first_weights_are_one_over_the_first_losses_or_equal():
    losses = [0.5, 2.0, 8.0]
    for normalization in ("initial", "log"):
        found = weights(f"ldc_mtl(normalization='{normalization}')", losses)
        torch.testing.assert_close(found, weights("scale_invariant", losses))
    assert weights("ldc_mtl(penalty=0, normalization='none')", losses).tolist() == pytest.approx([1, 1, 1])


def test_domains_are_neighbours_in_the_order_of_their_names():
    text = "ldc_mtl(penalty=0.4, lr=0.1)"
    pipes = gradhomog.pipeline(text), gradhomog.pipeline(text)
    names, order = ["a", "b", "c"], [2, 0, 1]
    for losses in ([1.0, 2.0, 3.0], [0.5, 1.9, 2.0], [0.4, 1.0, 2.1]):
        expected = weights(pipes[0], losses, domains=names)
        found = weights(pipes[1], [losses[i] for i in order], domains=[names[i] for i in order])
        torch.testing.assert_close(found, expected[order])


def test_slots_are_neighbours_in_their_order_in_batches_of_any_order():
    pipes = [gradhomog.pipeline("ldc_mtl(penalty=0.4, lr=0.1)") for _ in range(2)]
    tasks, order = 12, [11, 2, 0, 10, 1, 5, 4, 3, 9, 8, 7, 6]
    for seed in range(3):
        losses = torch.rand(tasks, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
        expected = weights(pipes[0], losses)
        found = weights(pipes[1], losses[order], slots=order)
        torch.testing.assert_close(found, expected[order])
