"""The plan: which runs, under which names, and what is refused before anything is trained."""

import pytest

from gradhomog import ConfigError
from gradhomog.experiments.config.schema import load
from gradhomog.experiments.execution import plan

TUNED = 'homogenizers=["none", "pcgrad", "static | static(weights=[1, 2])"]'


def test_every_method_runs_with_every_seed_and_candidates_with_the_first():
    config = load(None, [TUNED, "seeds=[4, 7]"])
    rows = plan.methods(config)
    assert [row.label for row in rows] == ["plain", "pcgrad", "static (tuned)"]
    runs = plan.first_runs(config, rows)
    assert [(r.label, r.homogenizers, r.seed, r.role) for r in runs] == [
        ("static (tuned)", "static", 4, "candidate"),
        ("static (tuned)", "static(weights=[1, 2])", 4, "candidate"),
        ("plain", "none", 4, "compare"),
        ("pcgrad", "pcgrad", 4, "compare"),
        ("plain", "none", 7, "compare"),
        ("pcgrad", "pcgrad", 7, "compare"),
    ]
    assert [r.seed for r in plan.tuned_runs(config, rows[2], "static")] == [4, 7]


def test_the_label_of_a_tuned_row_names_what_it_was_chosen_from():
    config = load(None, ['homogenizers=["none | pcgrad", "static | pcgrad", "static | static(weights=[1, 2])"]'])
    labels = [row.label for row in plan.methods(config)]
    assert labels == ["none | pcgrad (tuned)", "static | pcgrad (tuned)", "static (tuned)"]


def test_runs_have_different_folders_and_a_candidate_shares_its_with_the_run_it_becomes():
    config = load(None, ['homogenizers=["none", "static", "static | pcgrad"]', 'learner=["maml", "fomaml"]'])
    rows = plan.methods(config)
    runs = plan.first_runs(config, rows) + [
        r for row in rows if row.tuned for r in plan.tuned_runs(config, row, "static")
    ]
    by_id = {}
    for run in runs:
        by_id.setdefault(run.id, set()).add((run.learner, run.label, run.homogenizers, run.seed))
    assert all(len(what) == 1 for what in by_id.values())
    assert len(by_id) == 2 * (2 * 3 + 2 + 2)  # two learners; two rows of three seeds; two candidates; two more seeds


@pytest.mark.parametrize(
    ("homogenizers", "message"),
    [
        ('["pcgard"]', r"`homogenizers`: no homogenizer is called 'pcgard'. Did you mean 'pcgrad'\?"),
        ('["pcgrad(order=3)"]', r'`order` must be one of "random", "fixed"; got 3'),
        ('["pcgrad("]', r"`homogenizers`: expected an option's name"),
        ('["pcgrad", "pcgrad "]', r"names 'pcgrad' twice for maml"),
        ('["static | pcgrad", "static | pcgrad(seed=1)"]', r"names 'static \| pcgrad \(tuned\)' twice"),
        ('["static | static"]', r"names a candidate twice"),
        ('["pcgrad |"]', r"expected a pipeline: write 'none'"),
        ('["| pcgrad"]', r"expected a pipeline: write 'none'"),
        ('["maml"]', r"no homogenizer is called 'maml'. A learner is called so"),
        ('["PCGrad"]', r"Did you mean 'pcgrad'\?"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is_trained(homogenizers, message):
    with pytest.raises(ConfigError, match=message):
        plan.methods(load(None, [f"homogenizers={homogenizers}"]))
