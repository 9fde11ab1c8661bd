"""CR-MOGM against TorchJD's, its averages, and the wrapped method's needs and errors."""

import pytest
import torch

import gradhomog
from gradhomog import OptionError
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


def test_tasks_of_one_key_move_their_average_together():
    pipe = gradhomog.pipeline("cr_mogm(method='mgda')")
    pipe.combine(torch.diag(torch.tensor([1.0, 2.0, 4.0])), domains=["a", "a", "b"])
    averages = pipe.state_dict()["0:cr_mogm"]["averages"]
    assert averages == {"a": pytest.approx(3 * 10 / 21), "b": pytest.approx(3 * 1 / 21)}


def test_only_the_statistics_of_the_wrapped_method_are_computed():
    assert gradhomog.pipeline("cr_mogm(method='static')").members[0].needs == set()
    assert gradhomog.pipeline("cr_mogm(method='gradnorm')").members[0].needs == {"losses", "norms"}
    assert gradhomog.pipeline("cr_mogm(method='static')").homogenize(torch.eye(2)).gramian is None


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("none", "`method` must name one homogenizer; got 'none'"),
        ("static + mgda", "`method` must name one homogenizer; got 'static \\+ mgda'"),
        ("isi", "acts by `mix` alone; 'isi' acts by `attach`"),
        ("rotate", "acts by `mix` alone; 'rotate' acts by `transform`"),
    ],
)
def test_a_method_that_does_not_act_by_mix_alone_raises(method, message):
    with pytest.raises(OptionError, match=f"cr_mogm: .*{message}"):
        gradhomog.pipeline([("cr_mogm", {"method": method})])


def test_an_error_of_the_wrapped_method_names_it():
    with pytest.raises(OptionError, match=r"mgda\(normalize='loss'\): losses must be positive"):
        gradhomog.pipeline("cr_mogm(method=\"mgda(normalize='loss')\")").combine(torch.eye(2), losses=[0.0, 1.0])


def test_the_state_of_another_method_raises():
    saved = gradhomog.pipeline("cr_mogm(method='mgda')").state_dict()
    with pytest.raises(gradhomog.ConfigError, match="the state was saved with `method` 'mgda'"):
        gradhomog.pipeline("cr_mogm(method='cagrad')").load_state_dict(saved)
