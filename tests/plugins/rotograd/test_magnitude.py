"""RotoGrad's weights against the paper's formula, without the faults of the published code."""

import pytest
import torch
from torch import nn

import gradhomog
from tests.plugins.rotograd.steps import learn, matrices, weights_of_the_paper
from tests.plugins.rows import normal


def test_slow_tasks_count_more_in_the_common_length():
    directions = nn.functional.normalize(normal(3, 1, 4), dim=-1)
    pipe = gradhomog.pipeline("rotograd(rotation=false)")
    norms = torch.tensor([[4.0, 1.0, 2.0], [1.0, 1.0, 0.5], [0.1, 0.9, 2.5]], dtype=torch.float64)
    for now in norms:
        weights = learn(pipe, directions * now[:, None, None])
        torch.testing.assert_close(weights, weights_of_the_paper(now.tolist(), norms[0].tolist()))
    assert learn(gradhomog.pipeline("rotograd(scale='paper')"), directions).tolist() == pytest.approx([3, 3, 3])


def test_a_task_whose_first_gradient_is_zero_does_not_dominate_later():
    # The published code stores 1e-15 for it, and its share of C is 1 − 1e-14 from then on: that task alone sets C.
    directions = nn.functional.normalize(normal(3, 1, 4), dim=-1)
    asleep = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)[:, None, None]
    pipe = gradhomog.pipeline("rotograd(rotation=false)")
    torch.testing.assert_close(learn(pipe, asleep * directions), torch.tensor([1.5, 0.75, 1.0], dtype=torch.float64))
    awake = torch.tensor([1.0, 1.0, 8.0], dtype=torch.float64)
    torch.testing.assert_close(
        learn(pipe, awake[:, None, None] * directions), weights_of_the_paper([1, 1, 8], [1, 2, 8])
    )


def test_first_norms_are_measured_again_once_after_the_burn_in():
    directions = nn.functional.normalize(normal(2, 1, 4), dim=-1)
    pipe = gradhomog.pipeline("rotograd(rotation=false, burn_in=2)")
    norms = [[1.0, 1.0], [4.0, 1.0], [9.0, 3.0], [5.0, 1.0]]
    first = [norms[0], norms[0], norms[2], norms[2]]
    for now, initial in zip(norms, first, strict=True):
        scaled = torch.tensor(now, dtype=torch.float64)[:, None, None] * directions
        torch.testing.assert_close(learn(pipe, scaled), weights_of_the_paper(now, initial))


def test_tasks_of_one_domain_share_a_first_norm_that_follows_the_domain():
    directions = nn.functional.normalize(normal(3, 1, 4), dim=-1)
    size = lambda *norms: torch.tensor(norms, dtype=torch.float64)[:, None, None]  # noqa: E731
    pipe = gradhomog.pipeline("rotograd(rotation=false)")
    learn(pipe, size(1, 3, 5) * directions, domains=["a", "a", "b"])
    found = learn(pipe, size(5, 4) * directions[:2], domains=["b", "a"])
    torch.testing.assert_close(found, weights_of_the_paper([5, 4], [5, 2]))


def test_without_any_gradient_rows_are_unchanged():
    pipe = gradhomog.pipeline("rotograd")
    assert learn(pipe, torch.zeros(3, 2, 4, dtype=torch.float64)).tolist() == [1, 1, 1]
    assert torch.equal(matrices(pipe, 4, 3), torch.eye(4, dtype=torch.float64).repeat(3, 1, 1))


@pytest.mark.parametrize("earlier", [0, 2])
def test_gradients_with_a_graph_reach_the_direction_in_the_first_step_and_later(earlier):
    rows, state = torch.eye(3, dtype=torch.float64), None

    def direction(grads):
        pipe = gradhomog.pipeline("rotograd")
        if state is not None:
            pipe.load_state_dict(state)
        return pipe.combine(rows, features=grads, feature_grads=grads, create_graph=True)

    if earlier:
        pipe = gradhomog.pipeline("rotograd")
        for step in range(earlier):
            learn(pipe, normal(3, 2, 4, seed=step + 5))
        state = pipe.state_dict()
    assert torch.autograd.gradcheck(direction, (normal(3, 2, 4).requires_grad_(),))
