"""The trainer of a run: its records, its best state, and that interruptions do not change them."""

import json

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from gradhomog import ConfigError
from gradhomog.experiments.episodes.splits import normalize_scores, streams
from gradhomog.experiments.results import checksums
from gradhomog.experiments.results.comparison_dir import RunDir
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.meta_learning import make_learner
from gradhomog.experiments.training.trainer import Checkpoint
from tests.data.problems.conftest import GLYPHS
from tests.data.problems.test_landscape import SHORT as LANDSCAPE
from tests.data.problems.test_pinn import TINY as PINN
from tests.experiments.conftest import SMALL
from tests.experiments.run_helpers import trainer

RUN = Run("maml", "pcgrad + gradnorm", 0)
SALIENCY = [
    'domains.train=["glyphs:arrows"]', 'domains.test=["glyphs:arrows"]', "network.size=16", "network.width=2",
    "episodes.ways=3", "episodes.queries=2", "episodes.tasks=2", "train.steps=4", "train.inner_steps=1",
    "train.validation_episodes=2", "test.episodes=2",
]  # fmt: skip


def train(config, folder, stop_at=(), run=RUN):
    """Train to the end, interrupted at the given steps and resumed by a new trainer each time; return all records."""
    records = []
    for limit in (*stop_at, None):
        training = trainer(config, run, folder, records)
        assert training.train_and_test(lambda t=training, n=limit: t.done == n) == (limit is None)
    return [record for record in records if record["event"] != "start"]


def without_times(records):
    varying = ("seconds", "sha256", "files")
    return [json.dumps({k: v for k, v in r.items() if not k.endswith(varying)}, sort_keys=True) for r in records]


def written_arrays(folder):
    """The tensors and arrays in the files of a run."""
    states = [torch.load(path, weights_only=True) for path in sorted(folder.glob("*.pt"))]
    arrays = [dict(np.load(path)) for path in sorted(folder.glob("*.npz"))]
    return [np.asarray(leaf) for leaf in tree_leaves([states, arrays])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "run", "stops"),
    [
        *((SMALL, RUN, stops) for stops in ((1,), (4,), (5, 6), (3, 11))),
        *((GLYPHS, Run("glyph_pairs", "gradnorm + pcgrad", 0), stops) for stops in ((1,), (2, 5))),
        (GLYPHS, Run("glyph_pairs", "rotograd", 0), (2, 5)),
        *((LANDSCAPE, Run("landscape", "gradvac + pcgrad", 0), (stop,)) for stop in (1, 7, 20)),
        (SALIENCY, Run("maml", "pcgrad", 0), (1, 3)),
        (["problem.name=burgers", *PINN], Run("burgers", "upgrad", 0), (1, 4)),
        (["problem.name=klein_gordon", *PINN], Run("klein_gordon", "gradvac + pcgrad", 0), (1, 4)),
    ],
)
def test_an_interrupted_run_resumes_to_the_records_and_files_of_an_uninterrupted_run(settings, run, stops, tmp_path):
    config, whole, parts = load(None, settings), tmp_path / "whole", tmp_path / "parts"
    expected, found = train(config, whole, run=run), train(config, parts, stops, run)
    assert without_times(found) == without_times(expected)
    written = written_arrays(whole)
    assert written
    assert all(map(np.array_equal, written_arrays(parts), written))


def test_the_state_with_the_best_validation_score_is_tested(small, tmp_path):
    records = train(small, tmp_path)
    scores = {r["step"]: r["score"] for r in records if r["event"] == "validation"}
    result = records[-1]
    assert result["event"] == "result"
    assert result["metric"] == "nmse"
    assert scores[result["best_step"]] == min(scores.values()) == result["validation"]
    learner = make_learner(small, RUN, source := streams(small, 0))
    learner.load_state_dict(torch.load(tmp_path / "best.pt", weights_only=True))
    tested = learner.evaluate(source.test.task(i) for i in range(small.test.episodes))
    assert normalize_scores(tested, source.test.domains).scores == result["scores"]
    assert tested.domains == result["domains"]


def test_a_checkpoint_of_another_configuration_is_rejected(small, tmp_path):
    trainer(small, Run("maml", "none", 0), tmp_path).train_and_test(lambda: True)
    other = load(None, [*SMALL, "train.steps=13"])
    with pytest.raises(ConfigError, match=r"checkpoint.pt is of another configuration"):
        trainer(other, Run("maml", "none", 0), tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"done": 10**9}, {"trained": {}}, {"outer": {"a": 1}}, {"random": "a"},
        {"best": [{"score": "a", "step": 1, "state": {}}]}, {"random": torch.zeros(3)},
    ],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_with_entries_of_another_run_raises_with_its_name(small, tmp_path, change):
    run = Run("maml", "none", 0)
    trainer(small, run, tmp_path).train_and_test(lambda: True)
    with checksums.open_checkpoint(tmp_path / "checkpoint.pt", Checkpoint) as state:
        checksums.write_checkpoint(tmp_path / "checkpoint.pt", {**state, **change})
    with pytest.raises(
        ConfigError, match=r"checkpoint.pt(: `random` must be a| is damaged or not a checkpoint: ).* Remove it to train"
    ):
        trainer(small, run, tmp_path)


def test_the_learners_own_options_win_over_the_run_file(small):
    source = streams(small, 0)
    assert make_learner(small, Run("maml", "none", 0), source).inner_steps == 2
    assert make_learner(small, Run("maml(inner_steps=7, first_order=true)", "none", 0), source).inner_steps == 7


def test_a_training_domain_that_is_tested_beside_an_unseen_one_raises():
    with pytest.raises(ConfigError, match="it mixes functions:line with functions:bumps"):
        streams(load(None, [*SMALL, 'domains.test=["functions:line", "functions:bumps"]']), 0)


def test_training_domains_are_tested_on_their_test_split_and_others_on_all_classes():
    both = streams(load(None, [*SMALL, 'domains.test=["functions:line"]']), 0)
    unseen = streams(load(None, [*SMALL]), 0)
    assert both.test.split == "test"
    assert unseen.test.split == "all"


def test_validation_tasks_come_from_the_listed_domains_and_test_tasks_have_their_own_number_of_queries():
    overrides = ['domains.validation=["functions:line"]', "test.queries=9"]
    source = streams(load(None, [*SMALL, *overrides]), 0)
    assert [domain.name for domain in source.validation.domains] == ["functions:line"]
    assert len(source.train.domains) == 3
    assert len(source.validation.task(0).query_y) == 5
    assert len(source.test.task(0).query_y) == 9
    default = streams(load(None, SMALL), 0)
    assert [domain.name for domain in default.validation.domains] == [domain.name for domain in default.train.domains]
    assert len(default.test.task(0).query_y) == 5


def test_training_images_are_augmented_and_those_of_validation_and_test_are_not():
    images = ['domains.train=["glyphs:greek"]', 'domains.test=["glyphs:latin"]']
    augmented = streams(load(None, [*images, "train.augmentation=standard"]), 0)
    plain = streams(load(None, images), 0)
    assert not torch.equal(augmented.train.task(0).query_x, plain.train.task(0).query_x)
    assert torch.equal(augmented.validation.task(0).query_x, plain.validation.task(0).query_x)
    assert torch.equal(augmented.test.task(0).query_x, plain.test.task(0).query_x)


def test_the_checkpoint_stays_until_the_result_is_on_disk(small, tmp_path, monkeypatch):
    run = Run("maml", "none", 0)
    folder = tmp_path / run.id
    training = trainer(small, run, folder)
    monkeypatch.setattr(checksums, "write_json", lambda *args: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        training.train_and_test()
    assert (folder / "checkpoint.pt").exists()
    monkeypatch.undo()
    resumed = trainer(small, run, folder)
    assert resumed.done == small.train.steps  # no step is repeated
    assert resumed.train_and_test()
    assert not (folder / "checkpoint.pt").exists()
    assert RunDir(folder).result()["steps"] == small.train.steps


def test_the_run_file_of_a_run_contains_only_that_run(small, tmp_path):
    trainer(small, Run("maml", "pcgrad", 1), tmp_path)
    run_config = load(tmp_path / "config.toml")
    assert (run_config.learners, run_config.homogenizers, run_config.seed_list) == (["maml"], ["pcgrad"], [1])
    assert run_config.train == small.train


def test_files_of_one_stem_in_two_folders_are_two_domains(tmp_path):
    paths = [tmp_path / name / "images.npz" for name in ("one", "two", "three")]
    for seed, path in enumerate(paths):
        path.parent.mkdir()
        images = np.random.default_rng(seed).integers(0, 255, (200, 28, 28, 3), dtype=np.uint8)
        labels = np.repeat(np.arange(20), 10)
        np.savez(path, images=images, labels=labels, class_names=np.array([f"class {i}" for i in range(20)]))
    one, two, three = map(str, paths)
    source = streams(load(None, [f'domains.train=["{one}", "{two}"]', f'domains.test=["{three}"]']), 0)
    assert source.test.split == "all"
    assert set(source.train.batch(0).domains) == {one, two}
    same = streams(load(None, [f'domains.train=["{one}"]', f'domains.test=["{one}"]']), 0)
    assert same.test.split == "test"
