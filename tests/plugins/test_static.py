"""Fixed weights: what is fixed, by what, and what is refused."""

import pytest
import torch

import gradhomog
from gradhomog import OptionError

ROWS = torch.eye(3, dtype=torch.float64)


def test_weights_by_slot_are_normalised_to_mean_one_or_taken_as_they_are():
    assert gradhomog.pipeline("static(weights=[1, 2, 3])").combine(ROWS).tolist() == pytest.approx(
        [1 / 6, 2 / 6, 3 / 6]
    )
    paper = gradhomog.pipeline("static(weights=[1, 2, 3], scale='paper')").combine(ROWS)
    assert paper.tolist() == pytest.approx([1, 2, 3])


def test_weights_by_domain_follow_the_domain_and_not_the_slot():
    pipe = gradhomog.pipeline('static(weights={"a": 3, "*": 1})')
    assert pipe.combine(ROWS, domains=["a", "b", "c"]).tolist() == pytest.approx([0.6, 0.2, 0.2])
    assert pipe.combine(ROWS, domains=["c", "b", "a"]).tolist() == pytest.approx([0.2, 0.2, 0.6])


def test_random_weights_belong_to_the_domain_and_the_seed_and_stay_in_their_range():
    def weights(seed, domains):
        pipe = gradhomog.pipeline(f"static(weights='random', spread=4, seed={seed})")
        return pipe.homogenize(ROWS, domains=domains).weights

    first, turned = weights(1, ["a", "b", "c"]), weights(1, ["b", "c", "a"])
    torch.testing.assert_close(first[[1, 2, 0]], turned)
    assert not torch.allclose(first, weights(2, ["a", "b", "c"]))
    assert float(first.max() / first.min()) <= 16


@pytest.mark.parametrize(
    ("text", "domains", "message"),
    [
        ("static(weights=[1, 2])", None, r"one weight per task; got 2 for 3 tasks\."),
        ("static(weights=[1])", None, r"one weight per task; got 1 for 3 tasks\."),
        ("static(weights=[1, -2, 1])", None, r"not negative; got -2"),
        ("static(weights=[0, 0, 0])", None, r"not all be zero"),
        ('static(weights={"a": 1})', None, r"slot 0 has none"),
        ("static(spread=0.5)", None, r"`spread` must be at least 1"),
        ("static(weights='equal')", None, r"`weights` must be a list.*got 'equal'"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(text, domains, message):
    with pytest.raises(OptionError, match=message):
        gradhomog.pipeline(text).combine(ROWS, domains=domains)
