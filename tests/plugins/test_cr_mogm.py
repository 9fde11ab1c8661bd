"""CR-MOGM against TorchJD's, its averages, and the wrapped method's needs and errors."""

import pytest
import torch

import gradhomog
from tests.plugins.rows import normal


def test_of_a_mixing_matrix_the_column_sums_are_averaged():
    steps = [normal(3, 4, seed=seed) for seed in range(4)]
    pipe, alone = gradhomog.pipeline("cr_mogm(method='pcgrad(seed=5)')"), gradhomog.pipeline("pcgrad(seed=5)")
    average = None
    for rows in steps:
        current = alone.homogenize(rows).weights
        average = current if average is None else 0.9 * average + 0.1 * current
        torch.testing.assert_close(pipe.combine(rows), average @ rows / 3)


def test_averages_follow_a_domain_and_a_new_one_begins_with_its_weight():
    pipe = gradhomog.pipeline("cr_mogm(method='mgda', alpha=0.5)")
    rows = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    pipe.combine(rows[:2], domains=["a", "b"])  # MGDA: 8/5, 2/5
    weights = pipe.homogenize(rows[1:], domains=["b", "c"]).weights  # MGDA: 18/13, 8/13
    assert weights.tolist() == pytest.approx([(2 / 5 + 18 / 13) / 2, 8 / 13])
    weights = pipe.homogenize(rows[:1], domains=["a"]).weights
    assert weights.tolist() == pytest.approx([(8 / 5 + 1) / 2])


def test_only_the_statistics_of_the_wrapped_method_are_computed():
    assert gradhomog.pipeline("cr_mogm(method='static')").members[0].needs == set()
    assert gradhomog.pipeline("cr_mogm(method='gradnorm')").members[0].needs == {"losses", "norms"}
    assert gradhomog.pipeline("cr_mogm(method='static')").homogenize(torch.eye(2)).gramian is None


@pytest.mark.parametrize("wrapper", ["cr_mogm", "tracked"])
def test_the_state_of_another_method_raises(wrapper):
    saved = gradhomog.pipeline(f"{wrapper}(method='mgda')").state_dict()
    with pytest.raises(gradhomog.ConfigError, match="the state was saved with `method` 'mgda'"):
        gradhomog.pipeline(f"{wrapper}(method='cagrad')").load_state_dict(saved)
