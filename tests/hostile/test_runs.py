"""Comparisons with faulty plugins: results are kept; failures and slow plugins are each reported once."""

import dataclasses
import json
import math
import textwrap

import pytest

from gradhomog.errors import ConfigError
from gradhomog.experiments.execution.comparison import compare
from gradhomog.experiments.report.tables import score_table
from gradhomog.experiments.results.records import records as read
from gradhomog.experiments.run_file.schema import load
from tests.experiments.conftest import SMALL
from tests.hostile.plugins import assert_blamed, install

pytestmark = pytest.mark.usefixtures("without_figures")

EVEN = "def mix(self, step): return torch.ones(step.tasks)"


def config(homogenizers, *more):
    return load(None, [*SMALL, f"homogenizers={json.dumps(homogenizers)}", "seeds=1", *more])


@pytest.mark.slow
def test_a_homogenizer_that_fails_stops_its_run_and_earlier_results_are_kept(gradhomog_install, tmp_path):
    # One process computes the runs in sequence: plain before it, pcgrad after it.
    methods = """
        def mix(self, step):
            if step.number == 4:
                raise RuntimeError("out of ideas")
            return torch.ones(step.tasks)
    """
    install(gradhomog_install, methods)
    outcome = compare(config(["none", "bad", "pcgrad"]), tmp_path / "out")
    [(run, error)] = outcome.failures.items()
    assert_blamed(error, "raised in `mix`: RuntimeError: out of ideas")
    records = read(outcome.folder)
    of_bad = [record for record in records if record.get("run") == run]
    assert [record["step"] for record in of_bad if record["event"] == "step"] == [1, 2, 4]
    assert [record["error"] for record in of_bad if record["event"] == "failed"] == [error]
    assert [row.label for row in outcome.summary.rows] == ["plain", "pcgrad"]
    assert all(math.isfinite(row.score.mean) for row in outcome.summary.rows)
    table = score_table(outcome.summary).text()
    assert_blamed(next(line for line in table.splitlines() if line.startswith("Failed: ")))
    assert "Partial: 2 of 3 runs finished." in table


LEARNER = """
    from gradhomog import Learner, LearnerSpec, hookimpl

    class Bad(Learner):
        def task_row(self, task, key):
            return {}["nothing here"]
        def adapted_outputs(self, support_x, support_y, query_x):
            return self.head(self.encoder(query_x))

    @hookimpl
    def gradhomog_learner():
        return LearnerSpec(factory=Bad, summary="a learner that fails")
"""

DOMAIN = """
    from gradhomog import Domain, DomainSpec, hookimpl

    class Bad(Domain):
        name, outputs = "bad", None
        def __init__(self, variant, size=28):
            self.input_shape = (1, size, size)
        def check(self, split, *, ways, shots, queries):
            pass
        def sample(self, split, random, *, ways, shots, queries):
            return {}["nothing here"]

    @hookimpl
    def gradhomog_domain():
        return DomainSpec(factory=Bad, summary="a domain that fails")
"""


@pytest.mark.parametrize(
    ("kind", "source", "settings"),
    [
        ("learners", LEARNER, ['learner="bad"']),
        ("domains", DOMAIN, ['domains.train=["bad"]', 'domains.test=["bad"]', "network.name=conv4"]),
    ],
)
def test_a_learner_or_a_domain_that_fails_is_named_in_the_table(gradhomog_install, tmp_path, kind, source, settings):
    gradhomog_install("gradhomog-bad", source, plugin="bad", kind=kind, version="4.2")
    outcome = compare(config(["none"], *settings), tmp_path / "out")
    line = next(line for line in score_table(outcome.summary).text().splitlines() if line.startswith("Failed: "))
    assert f"{kind[:-1]} 'bad' of gradhomog-bad 4.2 (gradhomog_bad) raised KeyError: 'nothing here'" in line
    assert "Report it to the authors of gradhomog-bad, or remove 'bad'." in line
    [error] = outcome.failures.values()
    assert "Traceback (most recent call last)" in error


# -- observers -------------------------------------------------------------------------------------------------------

OBSERVER = """
import sys
from gradhomog import ObserverSpec, hookimpl

{body}

@hookimpl
def gradhomog_observer():
    return ObserverSpec(factory=factory, summary="misbehaves")
"""

OBSERVERS = {
    "raises-late": "SEEN = {'start': 1, 'step': 2}\ndef factory(config, folder): return lambda event, _: SEEN[event]",
    "exits": "def factory(config, folder): return lambda event, record: sys.exit(3)",
    "raises": "def factory(config, folder): return 1 / 0",
    "no-observer": "def factory(config, folder): return 'step'",
    "meddles": """
        def factory(config, folder):
            def observer(event, record):
                for name in list(record):
                    record[name] = "meddled"
            config.clear()
            return observer
    """,
}


@pytest.mark.slow
def test_observers_that_fail_are_each_reported_once_and_change_nothing(gradhomog_install, tmp_path, capsys):
    for name, body in OBSERVERS.items():
        text = OBSERVER.format(body=textwrap.dedent(body).strip())
        gradhomog_install(name, text, version="0.7", kind="observers")
    names = [name.replace("-", "_") for name in OBSERVERS]
    undisturbed = compare(config(["static"]), tmp_path / "undisturbed")
    capsys.readouterr()
    observed = dataclasses.replace(config(["static"]), observers=names)
    outcome = compare(observed, tmp_path / "out")
    assert outcome.failures == {}
    assert list(map(lasting, read(outcome.folder))) == list(map(lasting, read(undisturbed.folder)))
    messages = capsys.readouterr().err.splitlines()
    expected = {
        "raises_late": "raised at `validation`: KeyError: 'validation' (",
        "exits": "raised at `start`: SystemExit: 3 (",
        "raises": "raised ZeroDivisionError: division by zero (",
        "no_observer": "must return a function; got str",
    }
    assert len(messages) == len(expected)
    for name, words in expected.items():
        distribution = name.replace("_", "-")
        [line] = [line for line in messages if f"observer '{name}' of {distribution} 0.7 ({name})" in line]
        assert words in line
        assert "The run continues without" in line
        assert line.endswith(f"Report it to the authors of {distribution}, or remove '{name}'.")


def lasting(record):
    """Return a record without the values that differ from run to run."""
    varying = ("time", "config", "versions", "seconds", "files", "sha256")
    return {key: value for key, value in record.items() if not key.endswith(varying)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tensorbord", r"unknown observer 'tensorbord'\. Did you mean 'tensorboard'\?"),
        ("csv(path=1)", r"csv has no option 'path'"),
        ("pcgrad", r"It is the name of a homogenizer"),
    ],
)
def test_an_invalid_observer_raises_before_training(tmp_path, text, words):
    observed = dataclasses.replace(config(["static"]), observers=[text, "csv"])
    with pytest.raises(ConfigError, match=words):
        compare(observed, tmp_path / "out")
    assert not (tmp_path / "out").exists()
