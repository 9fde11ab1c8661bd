"""`gradhomog verify` names every file of a comparison that was changed, moved or removed, and data that differ."""

import shutil

import numpy as np
import pytest
from PIL import Image

from gradhomog import ConfigError
from gradhomog.cli import main
from gradhomog.experiments.episodes.splits import close_domains
from gradhomog.experiments.execution.comparison import compare
from gradhomog.experiments.results import checksums
from gradhomog.experiments.results.comparison_dir import RunDir
from gradhomog.experiments.results.records import records
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Run
from gradhomog_data.domains._picture_set import CACHED_FROM
from tests.experiments.run_helpers import interrupted_after

CLASSES, SIZE = 12, 16
PLAIN, PLAIN_1, PCGRAD = (Run("maml", *run).id for run in (("none", 0), ("none", 1), ("pcgrad", 0)))


def write_pictures(folder, seed=0):
    random = np.random.default_rng(seed)
    for number in range(CLASSES):
        (folder / f"class {number}").mkdir(parents=True, exist_ok=True)
        for index in range(CACHED_FROM // CLASSES + 1):
            pixels = random.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"class {number}" / f"{index:03}.png", compress_level=0)


def config(data):
    return load(
        None,
        [
            f'domains.train=["{data}"]', f'domains.test=["{data}"]', 'domains.setting="weak"', "seeds=2",
            'homogenizers=["none", "pcgrad"]', "network.name=mlp", "network.width=4", f"network.size={SIZE}",
            "episodes.ways=3", "episodes.shots=2", "episodes.queries=2", "episodes.tasks=2", "train.steps=4",
            "train.inner_steps=1", "train.validate_every=2", "train.validation_episodes=2", "test.episodes=4",
        ],
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with `pictures`, the `cache` of decoded pictures, and a finished comparison `out`."""
    root = tmp_path_factory.mktemp("finished")
    write_pictures(root / "pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        compare(config(root / "pictures"), root / "out")
    return root


@pytest.fixture
def out(finished, tmp_path, monkeypatch):
    """A copy of the finished comparison; its data are those of `finished`, with a copy of the cache."""
    shutil.copytree(finished / "cache", tmp_path / "cache")
    shutil.copytree(finished / "out", tmp_path / "out")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    close_domains()
    return tmp_path / "out"


def verify(out, capsys):
    code = main(["verify", str(out)])
    return code, capsys.readouterr().err.splitlines()


def swap(runs):
    (runs / PLAIN).rename(runs / "other")
    (runs / PCGRAD).rename(runs / PLAIN)
    (runs / "other").rename(runs / PCGRAD)


def overwrite(runs):
    shutil.rmtree(runs / PLAIN_1)
    shutil.copytree(runs / PLAIN, runs / PLAIN_1)


def edit_score(runs):
    path = runs / PLAIN / "events.jsonl"
    text = path.read_text()
    assert '"score": 0.' in text
    path.write_text(text.replace('"score": 0.', '"score": 0.9', 1))


def zero_cache(runs):
    (path,) = (runs.parent.parent / "cache" / "gradhomog").glob("pictures-*.npy")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2].ljust(len(content), b"\0"))


def edit_version(name):
    def change(runs):
        path = runs.parent / name
        path.write_text(path.read_text().replace('"version": 2', '"version": 3'))

    return change


def append(name):
    def change(runs):
        with (runs.parent / name).open("ab") as file:
            file.write(b"\n")

    return change


def replace_result(runs):
    """A consistent result with better scores, as anyone can write it."""
    path = runs / PCGRAD / "result.json"
    content = checksums.read_json(path, "")
    checksums.write_json(path, {**content, "scores": [1.0] * len(content["scores"])})


def fail_instead(runs):
    (runs / PCGRAD / "result.json").unlink()
    RunDir(runs / PCGRAD).record_failure("the method diverged")


def add(name):
    def change(runs):
        (runs.parent / name).parent.mkdir(exist_ok=True)
        (runs.parent / name).write_bytes(b"x")

    return change


def replace_manifest(content):
    return lambda runs: checksums.write_json(runs.parent / "manifest.json", content)


TAMPERINGS = {
    "two folders swapped": (swap, [f"{PLAIN}/result.json is the result of the run {PCGRAD}", f"{PCGRAD}/result.json"]),
    "a seed copied over another": (overwrite, [f"{PLAIN_1}/result.json is the result of the run {PLAIN}"]),
    "a result removed": (lambda runs: (runs / PLAIN / "result.json").unlink(), [f"{PLAIN}/result.json is missing"]),
    "an unknown folder": (lambda runs: shutil.copytree(runs / PLAIN, runs / "copy"), ["runs/copy is not a run of"]),
    "events removed": (lambda runs: (runs / PLAIN / "events.jsonl").unlink(), [f"{PLAIN}/events.jsonl is missing"]),
    "a score edited": (edit_score, [f"{PLAIN}/events.jsonl is damaged"]),
    "the cache zeroed": (zero_cache, ["/pictures-"]),
    "the plan edited": (edit_version("plan.json"), ["plan.json is damaged"]),
    "the manifest edited": (edit_version("manifest.json"), ["manifest.json is damaged"]),
    "the manifest removed": (lambda runs: (runs.parent / "manifest.json").unlink(), ["manifest.json is missing"]),
} | {
    f"{name} changed": (append(name), [f"{name} is damaged"])
    for name in ("summary.csv", f"runs/{PLAIN}/best.pt")
} | {
    f"{name} added": (add(name), [f"{name} was added after" if "/" in name else f"{name} is not listed in manifest"])
    for name in ("table.csv", f"runs/{PLAIN}/trajectory.npz")
} | {
    "a figure added": (add("figures/more.svg"), ["figures/more.svg is not listed in manifest.json"]),
    "a result replaced": (replace_result, [f"{PCGRAD}/result.json is damaged"]),
    "a success turned into a failure": (fail_instead, [f"{PCGRAD}/result.json is missing", "is not listed in"]),
    "a manifest without files": (replace_manifest({}), ["manifest.json: `files` is missing. Write the report again"]),
    "a manifest of a list": (replace_manifest({"files": ["a"]}), ["`files` must be"]),
    "a manifest of numbers": (replace_manifest({"files": {"a": 1}}), ["`files` must be"]),
    "a manifest of other paths": (replace_manifest({"files": {"/": "", "\0": "", "..": ""}}), ["is missing"]),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERINGS)
def test_verify_names_each_changed_file_and_fails(out, capsys, name):
    change, expected = TAMPERINGS[name]
    assert verify(out, capsys) == (0, [])
    change(out / "runs")
    code, errors = verify(out, capsys)
    assert code == 1
    for words in expected:
        assert any(words in error for error in errors), errors


@pytest.mark.parametrize("change", [swap, edit_score])
def test_the_report_of_exchanged_results_or_edited_events_is_an_error(out, capsys, change):
    """With two exchanged folders, the report attributed the numbers of one method to the other."""
    change(out / "runs")
    assert main(["report", str(out)]) == 2
    assert str(out / "runs" / "maml-none-") in capsys.readouterr().err


def test_changed_pictures_are_refused_on_resume_and_reported_by_verify(finished, tmp_path, monkeypatch, capsys):
    """A comparison that was resumed with other pictures mixed both data sets in one table: 66.7 % became 55.6 %."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data, out = tmp_path / "pictures", tmp_path / "out"
    shutil.copytree(finished / "pictures", data)
    with interrupted_after(6), pytest.raises(KeyboardInterrupt):
        compare(config(data), out)
    write_pictures(data, seed=1)
    close_domains()  # as in another process
    with pytest.raises(ConfigError, match=r"results of other data: the content of .*pictures differs .* Restore the"):
        compare(config(data), out, resume=True)
    code, errors = verify(out, capsys)
    assert code == 1
    assert any("the content of" in error and "pictures differs" in error for error in errors)
    (out / "plan.json").unlink()  # finished runs and checkpoints name their data as well
    with pytest.raises(ConfigError, match=r"-s0 has results of other data: the content of .*pictures differs"):
        compare(config(data), out, resume=True)


@pytest.mark.slow
def test_data_that_were_copied_to_another_folder_resume_and_verify(finished, tmp_path, monkeypatch, capsys):
    """Copying changes times and paths, but not the identity of the data; the table is the same."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data, moved, out = tmp_path / "pictures", tmp_path / "elsewhere" / "pictures", tmp_path / "out"
    shutil.copytree(finished / "pictures", data)
    with interrupted_after(6), pytest.raises(KeyboardInterrupt):
        compare(config(data), out)
    shutil.copytree(data, moved, copy_function=shutil.copyfile)
    shutil.rmtree(data)
    close_domains()
    compare(config(moved), out, resume=True)
    moved_scores, scores = (
        [record["scores"] for record in records(folder) if record["event"] == "result"]
        for folder in (out, finished / "out")
    )
    assert moved_scores == scores
    code, errors = verify(out, capsys)
    assert code == 0
    assert "the data were not compared" in errors[0]  # `plan.json` has the first path


def test_folders_of_an_earlier_format_are_refused(out, capsys):
    path = out / "plan.json"
    content = {**checksums.read_json(path, ""), "version": 1}
    path.unlink()
    checksums.write_json(path, content)
    for command in ("verify", "report"):
        assert main([command, str(out)]) == (1 if command == "verify" else 2)
        assert "has format version 1; this gradhomog reads 2" in capsys.readouterr().err
