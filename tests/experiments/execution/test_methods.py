"""The methods and runs of a comparison: names, errors before training, and rows with wrong loss weights."""

import pytest

from gradhomog import ConfigError
from gradhomog.experiments.execution.methods import make_methods, with_misscaled_losses
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Method, Run, chosen_candidate, decided_runs

TUNED = 'homogenizers=["none", "pcgrad", "static | static(weights=[1, 2])"]'


def finished(run, validation, metric="mse"):
    return {run.id: {"validation": validation, "metric": metric}}


def test_every_method_runs_with_every_seed_and_candidates_with_the_first():
    config = load(None, [TUNED, "seeds=[4, 7]"])
    rows = make_methods(config)
    assert [row.label for row in rows] == ["plain", "pcgrad", "static (tuned)"]
    first = decided_runs(rows, config.seed_list, {}, ())
    assert [(run.homogenizers, run.seed) for run in first] == [
        ("static", 4), ("static(weights=[1, 2])", 4), ("none", 4), ("pcgrad", 4), ("none", 7), ("pcgrad", 7)
    ]  # fmt: skip
    done = finished(first[0], 2.0) | finished(first[1], 1.0)
    assert set(decided_runs(rows, config.seed_list, done, ())) - set(first) == {
        Run("maml", "static(weights=[1, 2])", 7)
    }


@pytest.mark.parametrize(
    ("scores", "metric", "chosen"),
    [
        ((2.0, 1.0), "mse", "pcgrad"),
        ((2.0, 1.0), "accuracy", "static"),
        ((1.0, 1.0), "mse", "static"),  # the first of equal ones
        ((None, 1.0), "accuracy", "pcgrad"),  # null in a file: a non-finite score
        ((None, None), "mse", "static"),
    ],
)
def test_the_candidate_with_the_best_validation_score_is_chosen(scores, metric, chosen):
    method = Method("maml", "tuned", ["static", "pcgrad"])
    results = {}
    for text, score in zip(method.candidates, scores, strict=True):
        assert chosen_candidate(method, 3, results) is None
        results |= finished(Run("maml", text, 3), score, metric)
    assert chosen_candidate(method, 3, results) == chosen


def test_a_failed_candidate_is_excluded_from_the_choice():
    method = Method("maml", "tuned", ["static", "pcgrad"])
    one, two = (Run("maml", text, 0) for text in method.candidates)
    assert chosen_candidate(method, 0, {}, {one.id}) is None
    assert chosen_candidate(method, 0, finished(two, 9.0), {one.id}) == "pcgrad"
    assert chosen_candidate(method, 0, {}, {one.id, two.id}) is None


def test_different_runs_have_different_folders_and_methods_share_equal_runs():
    config = load(None, ['homogenizers=["none", "static", "static | pcgrad"]', 'learner=["maml", "fomaml"]', "seeds=3"])
    rows = make_methods(config)
    results = {}
    for run in decided_runs(rows, config.seed_list, {}, ()):
        results |= finished(run, 0.0 if run.homogenizers == "static" else 1.0)
    all_runs = decided_runs(rows, config.seed_list, results, ())
    assert len({run.id for run in all_runs}) == len(all_runs) == 2 * (3 + 3 + 1)  # pcgrad runs with the first seed only


@pytest.mark.parametrize(
    ("homogenizers", "message"),
    [
        ('["pcgard"]', r"`homogenizers`: unknown homogenizer 'pcgard'. Did you mean 'pcgrad'\?"),
        ('["pcgrad", "pcgrad "]', r"'pcgrad' occurs twice for maml"),
        ('["static | static"]', r"contains a candidate twice"),
        ('["pcgrad |"]', r"expected a pipeline: write 'none'"),
        ('["maml"]', r"unknown homogenizer 'maml'. It is the name of a learner"),
    ],
)
def test_invalid_pipelines_are_rejected_before_training(homogenizers, message):
    with pytest.raises(ConfigError, match=message):
        make_methods(load(None, [f"homogenizers={homogenizers}"]))


METHODS = ["none", "pcgrad", "tracked", "static | static(weights='random')"]


@pytest.mark.parametrize(
    ("settings", "task"),
    [
        ({"problem": {"name": "landscape"}}, "f1"),
        (
            {
                "domains": {"train": ["functions:step", "functions:line"], "test": ["functions:line"]},
                "network": {"name": "mlp"},
            },
            "functions:step",
        ),
    ],
    ids=["problem", "episodes"],
)
def test_methods_that_are_not_tuned_and_act_on_all_rows_have_a_row_for_each_wrong_weight(settings, task):
    config = load(defaults={**settings, "homogenizers": METHODS})
    weighted = [f'static(weights={{"*": 1.0, "{task}": {factor}}})' for factor in (0.01, 100.0)]
    expected = [*METHODS, *weighted, *(f"{text} + pcgrad" for text in weighted)]
    assert with_misscaled_losses(config).homogenizers == expected
