"""The observers csv, tensorboard and mlflow write the numbers of the run's events."""

import csv
import math

import numpy as np
import pytest

from gradhomog.experiments import records
from gradhomog.experiments.execution.comparison import compare
from gradhomog.experiments.results import events
from gradhomog.experiments.run_file.schema import load
from gradhomog.registry import installed
from tests.experiments.conftest import SMALL
from tests.experiments.run_helpers import interrupted_after

pytestmark = pytest.mark.usefixtures("without_figures")

OBSERVERS = """observers=["csv", "tensorboard", 'mlflow(experiment="ours")']"""


def expected(folder, name):
    """Return `(step, value)` pairs of a metric, computed from the events of a run."""
    pairs = []
    for event in events.read(folder / "events.jsonl"):
        if event["event"] == "step" and name == "loss/mean":
            pairs.append((event["step"], np.mean(event["losses"])))
        if event["event"] == "step" and name == "cosine/mean":
            cosines = np.array(event["cosines"])
            pairs.append((event["step"], cosines[np.triu_indices(len(cosines), 1)].mean()))
        if event["event"] == "step" and name == "norm/functions:line":
            pairs_of_tasks = zip(event["names"], event["norms"], strict=True)
            norms = [norm for task, norm in pairs_of_tasks if task == "functions:line"]
            pairs += [(event["step"], np.mean(norms))] if norms else []
        if event["event"] == "validation" and name == "validation/score":
            pairs.append((event["step"], event["score"]))
    return pairs


NAMES = ("loss/mean", "cosine/mean", "norm/functions:line", "validation/score")


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """Yield the folder of a run that was interrupted after a checkpoint and resumed, and the store of MLflow."""
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")
    folder, store = tmp_path_factory.mktemp("observed") / "out", tmp_path_factory.mktemp("mlflow")
    config = load(None, [*SMALL, "seeds=1", 'homogenizers=["pcgrad"]', OBSERVERS])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", store.as_uri())
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        with interrupted_after(6), pytest.raises(KeyboardInterrupt):
            compare(config, folder)
        assert compare(config, folder, resume=True).failures == {}
        [run] = (folder / "runs").iterdir()
        yield run, store


@pytest.mark.parametrize("name", NAMES)
def test_the_csv_table_contains_every_number_once(observed, name):
    run, _ = observed
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = [(int(row["step"]), float(row["value"])) for row in rows if row["name"] == name]
    assert np.allclose(found, expected(run, name))


def test_the_csv_table_contains_the_test_scores(observed):
    run, _ = observed
    with (run / "metrics.csv").open(newline="") as file:
        [row] = [row for row in csv.DictReader(file) if row["name"] == "test/score"]
    [scores] = [record["scores"] for record in records(run.parent.parent) if record["event"] == "result"]
    score = sum(scores) / len(scores)
    assert math.isclose(float(row["value"]), score)
    assert int(row["step"]) == 12


def test_steps_after_the_checkpoint_of_a_killed_process_are_written_once(tmp_path):
    _, _, killed = installed().make("observers", "csv", {}, {}, tmp_path)
    killed("start", {"step": 0})
    for step in (2, 4, 6):
        killed("validation", {"step": step, "score": step / 10})
    _, _, resumed = installed().make("observers", "csv", {}, {}, tmp_path)
    resumed("start", {"step": 4})
    resumed("validation", {"step": 6, "score": 0.6})
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines == ["step,name,value", *(f"{step},validation/score,{step / 10}" for step in (2, 4, 6))]


@pytest.mark.parametrize("name", NAMES)
def test_tensorboard_reads_every_number_once(observed, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, _ = observed
    read = EventAccumulator(str(run)).Reload()
    assert np.allclose([(point.step, point.value) for point in read.Scalars(name)], expected(run, name))


@pytest.mark.parametrize("name", NAMES)
def test_mlflow_has_one_finished_run_with_every_number(observed, name):
    from mlflow import MlflowClient

    folder, store = observed
    client = MlflowClient(store.as_uri())
    [run] = client.search_runs([client.get_experiment_by_name("ours").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == folder.name
    assert run.data.params["homogenizers"] == "['pcgrad']"
    assert run.data.params["train.steps"] == "12"
    # Steps after the checkpoint of the resumed run are stored twice, with equal values.
    found = {point.step: point.value for point in client.get_metric_history(run.info.run_id, name)}
    assert np.allclose(sorted(found.items()), expected(folder, name))
