"""The output folder: new folders are numbered, those of other configurations rejected, the latest one resumed."""

import json
from dataclasses import replace

import pytest

from gradhomog import ConfigError
from gradhomog.experiments.results import checksums
from gradhomog.experiments.results.comparison_dir import Plan, choose_folder, create_folder
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Method


def start(config, out=None, resume=False, stem="compare"):
    """Create the output folder of a comparison and return it."""
    folder = choose_folder(config, out, resume, stem)
    folder.mkdir(parents=True, exist_ok=True)
    create_folder(config, folder)
    return folder


@pytest.fixture(autouse=True)
def _working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_new_folders_are_numbered_and_the_latest_of_a_configuration_is_resumed():
    one, two = load(None, ["seeds=1"]), load(None, ["seeds=2"])
    folders = [start(config) for config in (one, two, one)]
    assert [str(path) for path in folders] == ["runs/compare", "runs/compare-2", "runs/compare-3"]
    assert start(one, resume=True) == folders[2]
    assert start(two, resume=True) == folders[1]
    with pytest.raises(ConfigError, match=r"no folder runs/compare.* has this configuration to resume"):
        start(load(None, ["seeds=3"]), resume=True)


def test_results_are_not_mixed_with_those_of_another_configuration(tmp_path):
    out = start(load(None, ["train.steps=5"]), tmp_path / "out")
    with pytest.raises(ConfigError, match=r"another configuration: `train.steps` is 5 there and 6 here"):
        start(load(None, ["train.steps=6"]), out, resume=True)


def test_existing_results_need_resume(tmp_path):
    config = load()
    out = start(config, tmp_path / "out")
    Plan(config.to_dict(), config.digest, [], [0], {}).write(out)
    with pytest.raises(ConfigError, match=r"already contains results\. Add --resume"):
        start(config, out)
    assert start(config, out, resume=True) == out


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be written: .*file is a file\. Choose another --out"):
        start(load(), tmp_path / "file" / "out")


def test_the_users_run_file_is_not_overwritten(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("# mine\nseeds = 1\n", encoding="utf-8")
    start(load(path), tmp_path)
    assert path.read_text(encoding="utf-8").startswith("# mine")


def test_resuming_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="holds nothing to resume"):
        start(load(), tmp_path / "typo", resume=True)
    assert not (tmp_path / "typo").exists()


def test_missing_and_unreadable_folders_are_skipped_when_resuming():
    config = load(None, ["seeds=1"])
    folders = [start(config, stem="train") for _ in range(3)]
    (folders[0] / "run.toml").unlink()
    folders[0].rmdir()
    (folders[2] / "run.toml").write_text("future_key = 1\n", encoding="utf-8")
    assert start(config, resume=True, stem="train") == folders[1]
    assert start(config, stem="train").name == "train-4"


def test_a_plan_round_trips_and_rejects_other_data(tmp_path):
    methods = [Method("maml", "plain", ["none"]), Method("maml", "static (tuned)", ["static", "static(seed=1)"])]
    plan = Plan({"seeds": 2, "plugins": []}, "abc", methods, [0, 1], {"fingerprints": {"/data/birds": "one"}})
    plan.write(tmp_path)
    assert Plan.read(tmp_path) == plan
    replace(plan, metadata={"fingerprints": {"/other/birds": "one"}}).write(tmp_path)
    with pytest.raises(ConfigError, match=r"has results of other data: the content of /data/birds differs"):
        replace(plan, metadata={"fingerprints": {"/data/birds": "two"}}).write(tmp_path)
    assert Plan.read(tmp_path) == plan


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"version": 1}', b'{"version": 1, "methods": 3}', b"[" * 5000]
)
def test_the_error_of_a_damaged_plan_names_the_file(tmp_path, content):
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"plan\.json"):
        Plan.read(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"config": 3}, {"config": {"train": 3}}, {"config": {"seeds": [[]]}}, {"digest": 1}, {"seeds": []},
        {"seeds": ["a"]}, {"methods": [{"learner": "maml", "label": "plain", "candidates": []}]}, {"methods": [3]},
        {"metadata": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_plan_with_entries_of_a_wrong_type_raises_with_its_name(tmp_path, change):
    config = load()
    Plan(config.to_dict(), config.digest, [Method("maml", "plain", ["none"])], [0], {}).write(tmp_path)
    content = {**json.loads((tmp_path / "plan.json").read_text()), **change}
    del content["sha256"]
    content["sha256"] = checksums.content_digest(content)
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"plan\.json.*Remove it"):
        Plan.read(tmp_path)
