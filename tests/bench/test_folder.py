"""The output folder: new ones are numbered, foreign ones refused, the right one found again."""

import os

import pytest

from gradhomog import ConfigError
from gradhomog.bench.config import load
from gradhomog.bench.folder import prepare


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_new_folders_are_numbered_and_the_latest_of_a_configuration_is_resumed():
    one, two = load(None, ["seeds=1"]), load(None, ["seeds=2"])
    folders = [prepare(config, None, False, "compare") for config in (one, two, one)]
    assert [str(path) for path in folders] == ["runs/compare", "runs/compare-2", "runs/compare-3"]
    assert prepare(one, None, True, "compare") == folders[2]
    assert prepare(two, None, True, "compare") == folders[1]
    with pytest.raises(ConfigError, match=r"no folder runs/compare.* of this configuration to resume"):
        prepare(load(None, ["seeds=3"]), None, True, "compare")


def test_the_resolved_configuration_is_written_and_reads_back(tmp_path):
    config = load(None, ["seeds=1"])
    assert load(prepare(config, tmp_path / "out", False, "compare") / "run.toml") == config


def test_results_are_not_mixed_with_those_of_another_configuration(tmp_path):
    out = prepare(load(None, ["train.steps=5"]), tmp_path / "out", False, "compare")
    with pytest.raises(ConfigError, match=r"another configuration: `train.steps` is 5 there and 6 here"):
        prepare(load(None, ["train.steps=6"]), out, True, "compare")


def test_existing_results_need_resume(tmp_path):
    config = load()
    out = prepare(config, tmp_path / "out", False, "compare")
    with pytest.raises(ConfigError, match=r"already holds results\. Add --resume"):
        prepare(config, out, False, "compare")
    assert prepare(config, out, True, "compare") == out


@pytest.mark.skipif(os.name != "posix", reason="permissions of /proc are those of Linux")
def test_a_folder_that_cannot_be_written_is_told():
    from pathlib import Path

    with pytest.raises(ConfigError, match=r"cannot be written: .* Choose another --out"):
        prepare(load(), Path("/proc/nowhere/out"), False, "compare")
    Path("file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        prepare(load(), Path("file/out"), False, "compare")
