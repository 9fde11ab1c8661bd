"""Results do not depend on the executor: processes on this machine, a Dask cluster, or jobs of submitit."""

import sys
from unittest import mock

import pytest

from gradhomog import ConfigError
from gradhomog.errors import GradhomogError
from gradhomog.experiments.execution.comparison import compare
from gradhomog.experiments.execution.executors import make_executor
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
        ("locla", r"unknown executor 'locla'\. Did you mean 'local'\? Executors: dask, local, ranks, slurm\."),
        ("local(address=1)", r"--executor local: got an unexpected keyword argument 'address'\. Its options: none"),
        ('dask(adress="tcp://x")', r"unexpected keyword argument 'adress'\. Its options: address: str \| None = None"),
        ("dask(jobs=1)", r"multiple values for keyword argument 'jobs'"),
        ('slurm(cluster="local", timeout="x")', "--executor slurm: "),
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
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(
        ConfigError, match=r"the package 'distributed'\. Install it with: pip install 'gradhomog\[dask\]'"
    ):
        make_executor("dask", 1, tmp_path)
