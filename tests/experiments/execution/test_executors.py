"""Results do not depend on the executor: processes on this machine, a Dask cluster, or jobs of submitit."""

from unittest import mock

import pytest

from gradhomog import ConfigError, PluginRunError
from gradhomog.errors import GradhomogError
from gradhomog.experiments.execution.comparison import compare
from gradhomog.experiments.execution.worker import make_executor
from gradhomog.experiments.results.records import records
from gradhomog.experiments.run_file.schema import load
from tests.experiments.conftest import SMALL

# Three runs, the last of which depends on the results of the others: submitit starts a process for each.
OVERRIDES = [*SMALL, 'homogenizers=["static | pcgrad"]']


def scores(outcome):
    return {(r["run"], r["role"]): r["scores"] for r in records(outcome.folder) if r["event"] == "result"}


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    with mock.patch("gradhomog.experiments.report.page._save_figures", return_value={}):
        return compare(load(None, OVERRIDES), tmp_path_factory.mktemp("serial"))


@pytest.mark.slow
@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("text", ["local", "dask", 'slurm(cluster="local", timeout_min=5)'])
def test_results_of_every_executor_equal_those_of_one_process(serial, tmp_path, text):
    for module in {"dask": ["distributed"], "slur": ["submitit"]}.get(text[:4], []):
        pytest.importorskip(module)
    if text == "dask":
        import distributed

        with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
            text = f'dask(address="{cluster.scheduler_address}")'
            outcome = compare(load(None, OVERRIDES), tmp_path / "out", jobs=2, executor=text)
    else:
        outcome = compare(load(None, OVERRIDES), tmp_path / "out", jobs=2, executor=text)
    assert not outcome.failures
    assert scores(outcome) == scores(serial)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("locla", r"unknown executor 'locla'\. Did you mean 'local'\? Installed: dask, local, ranks, ray, slurm\."),
        ("pcgrad", r"unknown executor 'pcgrad'\. It is the name of a homogenizer\."),
        ("local(address=1)", r"local has no option 'address'\. Its options: none"),
        ('dask(adress="tcp://x")', r"dask has no option 'adress'\. Did you mean 'address'\? Its options: address=none"),
    ],
)
def test_unknown_executors_and_options_are_rejected(tmp_path, text, words):
    with pytest.raises(GradhomogError, match=words):
        make_executor(text, 1, tmp_path)


def test_ranks_are_started_by_torchrun(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with pytest.raises(ConfigError, match="--executor ranks must be started by torchrun"):
        make_executor("ranks", 1, tmp_path)


def test_the_error_of_a_missing_package_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs the package 'ray'\. Install it with: pip install 'gradhomog\[ray\]'"):
        make_executor("ray", 1, tmp_path)


def test_an_executor_of_another_distribution_is_named_like_the_others(tmp_path, gradhomog_install):
    source = """
from gradhomog import ExecutorSpec, hookimpl
from gradhomog.experiments import Executor

class Reversed(Executor):
    def __init__(self, *, jobs, folder, log: str):
        self.jobs, self.path = 1, folder.parent / log
    def __call__(self, jobs):
        for job in reversed(jobs):
            with self.path.open("a") as file:
                file.write(job.run.homogenizers + "\\n")
            yield job()

@hookimpl
def gradhomog_executor():
    return ExecutorSpec(%s, "the last run first")
"""
    good = gradhomog_install("turned-executor", source % "Reversed", kind="executors")
    overrides = [*SMALL, 'homogenizers=["none", "pcgrad"]', "seeds=1"]
    outcome = compare(load(None, overrides), tmp_path / "out", executor=f'{good}(log="order")')
    assert not outcome.failures
    assert (tmp_path / "order").read_text().split() == ["pcgrad", "none"]
    with pytest.raises(GradhomogError, match="requires the option 'log'"):
        make_executor(good, 1, tmp_path)
    wrong = gradhomog_install("wrong-executor", source % "lambda jobs, folder: print", kind="executors")
    with pytest.raises(PluginRunError, match=r"must return a gradhomog\.experiments\.Executor; got builtin_function"):
        make_executor(wrong, 1, tmp_path)
