"""Fixed weights by slot, by domain and at random, and weights that raise."""

import pytest
import torch

import gradhomog

ROWS = torch.eye(3, dtype=torch.float64)


def test_weights_by_slot_have_mean_one_and_are_unchanged_in_the_paper_scale():
    mean = gradhomog.pipeline("static(weights=[1, 2, 3])").combine(ROWS)
    assert mean.tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    paper = gradhomog.pipeline("static(weights=[1, 2, 3], scale='paper')").combine(ROWS)
    assert paper.tolist() == pytest.approx([1, 2, 3])


def test_weights_by_domain_follow_the_domain_and_not_the_slot():
    pipe = gradhomog.pipeline('static(weights={"a": 3, "*": 1})')
    assert pipe.combine(ROWS, domains=["a", "b", "c"]).tolist() == pytest.approx([0.6, 0.2, 0.2])
    assert pipe.combine(ROWS, domains=["c", "b", "a"]).tolist() == pytest.approx([0.2, 0.2, 0.6])


def test_random_weights_are_a_function_of_domain_and_seed_within_their_range():
    def weights(seed, domains):
        pipe = gradhomog.pipeline(f"static(weights='random', spread=4, seed={seed})")
        return pipe.homogenize(ROWS, domains=domains).weights

    first, turned = weights(1, ["a", "b", "c"]), weights(1, ["b", "c", "a"])
    torch.testing.assert_close(first[[1, 2, 0]], turned)
    assert not torch.allclose(first, weights(2, ["a", "b", "c"]))
    assert float(first.max() / first.min()) <= 16
