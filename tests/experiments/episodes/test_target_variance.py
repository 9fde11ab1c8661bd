"""Normalized mean squared errors: divided by the variance of each domain's targets, if all domains have one."""

import math

import pytest

from gradhomog import DataError
from gradhomog.experiments.episodes import splits
from gradhomog.experiments.episodes.splits import all_have_variance
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.meta_learning import MetaLearning
from gradhomog_data.domains.functions import functions
from tests.experiments.conftest import SMALL


def test_a_comparison_validates_and_tests_with_normalized_errors():
    trainee = MetaLearning(load(None, SMALL), Run("maml", "none", 0))
    assert trainee.metric == "nmse"
    for result, stream in (
        (trainee.validate(), trainee.source.validation),
        (trainee.test([trainee.state_dict()]), trainee.source.test),
    ):
        raw = trainee.learner.evaluate(stream.task(index) for index in range(len(result.scores)))
        variances = {domain.name: domain.target_variance for domain in stream.domains}
        assert result.metric == "nmse"
        assert result.scores == [s / variances[name] for s, name in zip(raw.scores, raw.domains, strict=True)]
        assert result.losses == raw.losses


def test_with_one_domain_without_variance_scores_are_mean_squared_errors(monkeypatch):
    plain = functions("line")
    plain.target_variance = None  # like a domain of another package that does not set it
    monkeypatch.setattr(splits, "_domain", lambda text, *rest: plain if "line" in text else functions(text[10:]))
    trainee = MetaLearning(load(None, SMALL), Run("maml", "none", 0))
    assert trainee.metric == trainee.validate().metric == "mse"


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_variance_that_is_not_a_positive_number_raises_with_its_domain(value):
    domain = functions("step")
    domain.target_variance = value
    with pytest.raises(DataError, match=r"domain functions:step: `target_variance` must be a positive number.* got"):
        all_have_variance([functions("line"), domain])


def test_a_classification_domain_with_a_variance_raises():
    domain = functions("step")
    domain.outputs = None
    with pytest.raises(DataError, match="for classification"):
        all_have_variance([domain])
