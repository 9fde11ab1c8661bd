"""Experiments as lists of comparisons: rows, domains, splits and settings of the paper."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gradhomog.errors import ConfigError, DataError
from gradhomog.experiments.data.splits import streams
from gradhomog.experiments.execution import plan
from gradhomog.experiments.reproduce import EXPERIMENTS, NAMES, SCALES, Settings, find_domains, image_size, parts
from gradhomog.experiments.reproduce.experiments import conflict_run
from gradhomog_data.benchmarks import BENCHMARKS
from tests.docs import pages
from tests.experiments.reproduce.conftest import TINY

SPECIALIZED = ("chestx", "cropdiseases", "eurosat", "isic")


@pytest.fixture
def domains(nine_benchmarks: Path) -> dict[str, str]:
    return find_domains(nine_benchmarks, [], 16)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_row_of_every_experiment_is_a_method_of_its_configuration(
    name: str, scale: str, domains: dict[str, str]
) -> None:
    found = parts(name, Settings(domains, scale))
    assert len({part.name for part in found}) == len(found)
    for part in found:
        methods = plan.methods(part.config)
        assert len(methods) == len(part.rows)
        assert {method.learner for method in methods} == {row.learner for row in part.rows}


def test_the_strong_problem_leaves_the_target_out_and_trains_on_all_classes_of_specialized_benchmarks(
    domains: dict[str, str],
) -> None:
    for part in parts("strong", Settings(domains, learners=["maml"], shots=[1], others=False, overrides=TINY)):
        target = part.column.split()[0]
        chosen = part.config.domains
        assert chosen.test == [domains[target]]
        assert chosen.setting == "strong"
        assert len(chosen.train) == 8
        assert not any(text.startswith(domains[target]) for text in chosen.train)
        source = streams(part.config, 0)
        assert source.test.split == "all"
        for domain in source.train.domains:
            count = 5 if domain.name.removesuffix("-16") in SPECIALIZED else 10
            assert len(domain.classes("train")) == count
        assert not {domain.name.removesuffix("-16") for domain in source.validation.domains} & set(SPECIALIZED)
        for index in range(3):
            assert len(set(source.train.batch(index).domains)) == 4


def test_the_weak_problem_tests_other_classes_of_the_same_data(domains: dict[str, str]) -> None:
    for part in parts("weak", Settings(domains, learners=["maml"], shots=[1], others=False, overrides=TINY)):
        assert part.config.domains.train == part.config.domains.test
        assert part.config.domains.setting == "weak"
        assert streams(part.config, 0).test.split == "test"


def test_the_settings_of_the_paper(domains: dict[str, str]) -> None:
    (weak,) = parts("weak", Settings(domains, "paper", ["iMAML"], ["cub"], [5], others=False))
    (strong,) = parts("strong", Settings(domains, "paper", ["iMAML"], ["cub"], [5], others=False))
    for part in (weak, strong):
        assert (part.config.train.inner_lr, part.config.train.outer_lr) == (0.01, 0.001)
        assert part.config.train.steps == 60_000
        assert part.config.train.augmentation == "standard"
        assert (part.config.episodes.ways, part.config.episodes.shots, part.config.episodes.tasks) == (5, 5, 4)
        assert (part.config.test.episodes, part.config.test.queries) == (600, 15)
    assert (weak.config.network.name, weak.config.network.width, weak.config.network.size) == ("conv4", 64, 84)
    assert strong.config.network.name == "resnet10"
    pipelines = {row.title: row.homogenizers for row in (*weak.rows, *strong.rows)}
    assert 'reweight={"beta": 0.1, "solver": "gradient"}' in weak.rows[1].homogenizers
    assert 'reweight={"beta": 1.5, "solver": "gradient"}' in strong.rows[1].homogenizers
    assert pipelines["iMAML"] == "none"


def test_choices_select_rows_and_columns(domains: dict[str, str]) -> None:
    settings = Settings(domains, learners=["MAML", "fomaml"], targets=["cub", "isic"], shots=[1], others=False)
    found = parts("strong", settings)
    assert [part.name for part in found] == [
        "cub-1-shot-maml", "cub-1-shot-fomaml", "isic-1-shot-maml", "isic-1-shot-fomaml",
    ]  # fmt: skip
    assert [row.title for row in found[1].rows] == [
        "fomaml", "fomaml-RotoGBML", "fomaml, static (tuned)", "fomaml, pcgrad",
    ]  # fmt: skip
    assert [row.published for row in found[0].rows] == ["MAML", "MAML-RotoGBML", None, None]


def test_two_expressions_of_one_learner_have_folders_of_their_names(domains: dict[str, str]) -> None:
    settings = Settings(domains, learners=["maml", "maml(first_order=true)"], targets=["cub"], shots=[1], others=False)
    names = [part.name for part in parts("weak", settings)]
    assert names[0] == "cub-1-shot-maml"
    assert names[1].startswith("cub-1-shot-maml-first_order-true-")
    long = [f"maml(inner_lr={value}, adapt={['head.*'] * 40})" for value in (1, -1)]
    names = [part.name for part in parts("weak", replace(settings, learners=long))]
    assert len(set(names)) == 2
    assert max(map(len, names)) < 80


def test_shares_of_the_training_steps_follow_the_scale_and_the_overrides(domains: dict[str, str]) -> None:
    for settings, steps in ((Settings(domains, "small"), 400), (Settings(domains, overrides=["train.steps=50"]), 50)):
        learners = {row.title: row.learner for part in parts("weak", settings) for row in part.rows}
        assert learners["MTL"] == f"mtl(pretrain_steps={steps // 2})"
        assert learners["MAML++"] == f"mamlpp(multi_step_steps={round(steps * 0.15)})"


def test_absent_benchmarks_are_omitted(domains: dict[str, str]) -> None:
    present = {name: domains[name] for name in ("miniimagenet", "cub", "eurosat")}
    found = parts("strong", Settings(present, learners=["maml"], shots=[1], others=False))
    assert [part.column for part in found] == ["cub 1-shot", "eurosat 1-shot"]
    assert len(found[0].config.domains.train) == 2


def test_the_ablation_has_all_subsets_of_the_modules_and_hyper(domains: dict[str, str]) -> None:
    part = parts("ablation", Settings(domains, targets=["cub"], shots=[1]))[0]
    assert [row.title for row in part.rows] == [
        "plain", "hyper", "reweight", "rotate", "isi", "rotate + reweight", "isi + reweight", "isi + rotate",
        "isi + rotate + reweight", "static (tuned)",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"targets": ["cup"]}, r"`strong` has no target 'cup'.*Did you mean 'cub'\?"),
        ({"targets": ["miniimagenet"]}, r"`strong` has no target 'miniimagenet'"),
        ({"overrides": ["train.stepz=3"]}, "unknown key `train.stepz`"),
        ({"overrides": ["learner=maml"]}, "--set learner: the experiment sets this key; use --learner"),
        ({"overrides": ["homogenizers=['none']"]}, "--set homogenizers: .* use --rotogbml"),
        ({"overrides": ["episodes.shots = 5"]}, r"--set episodes\.shots: .* use --shots"),
        ({"overrides": ["domains.setting=weak"]}, r"--set domains\.setting"),
        ({"overrides": ["problem.name=landscape"]}, r"--set problem\.name"),
    ],
)
def test_errors_name_the_choice(settings: dict[str, list[str]], message: str, domains: dict[str, str]) -> None:
    with pytest.raises(Exception, match=message):
        parts("strong", Settings(domains, **settings))


def test_options_without_effect_raise(domains: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="`--rotogbml` has no effect in `ablation`"):
        parts("ablation", Settings(domains, rotogbml="pcgrad"))
    with pytest.raises(ConfigError, match=r"--set network\.name"):
        parts("backbone", Settings(domains, overrides=["network.name=conv4"]))


def test_equal_rows_are_computed_once_and_other_settings_have_no_published_numbers(domains: dict[str, str]) -> None:
    (part,) = parts("strong", Settings(domains, learners=["relationnet"], targets=["cub"], shots=[1]))[:1]
    assert [row.title for row in part.rows][:2] == ["RelationNet", "RelationNet-FT"]
    assert len({row.homogenizers for row in part.rows}) == len(part.rows)
    (part,) = parts("strong", Settings(domains, learners=["MAML"], targets=["cub"], shots=[1, 1], others=False,
                                       rotogbml="pcgrad"))  # fmt: skip
    assert [row.published for row in part.rows] == ["MAML", None, None]
    settings = Settings(domains, learners=["MAML"], targets=["cub"], shots=[1], overrides=["episodes.ways=3"])
    assert {row.published for part in parts("strong", settings) for row in part.rows} == {None}


def test_targets_of_saliency_are_benchmarks(domains: dict[str, str]) -> None:
    (part,) = parts("saliency", Settings(domains, targets=["cub", "isic"]))
    assert part.config.domains.test == [domains["cub"], domains["isic"]]
    assert part.config.domains.train == [domains["miniimagenet"]]
    with pytest.raises(ConfigError, match="`saliency` has no target 'others'; it has cub"):
        parts("saliency", Settings(domains, targets=["others"]))


@pytest.mark.parametrize(
    ("arguments", "size"),
    [(("weak", "paper", []), 84), (("strong", "paper", []), 224), (("ablation", "paper", []), 224),
     (("conflict", "smoke", []), 32), (("strong", "smoke", ["network.size=16"]), 16)],
)  # fmt: skip
def test_data_are_searched_at_the_size_of_the_network(arguments: tuple[str, str, list[str]], size: int) -> None:
    assert image_size(*arguments) == size


def test_the_error_without_data_lists_the_benchmarks_and_the_options() -> None:
    with pytest.raises(ConfigError, match=r"`weak` needs at least one of the benchmarks miniimagenet, cub; .* --data"):
        parts("weak", Settings({}))
    with pytest.raises(ConfigError, match="target cub needs at least one of miniimagenet, cars"):
        parts("strong", Settings({"cub": "cub.npz", "isic": "isic.npz"}, targets=["cub"]))


def test_the_conflict_is_measured_between_all_benchmarks(domains: dict[str, str]) -> None:
    config, pipeline = conflict_run(Settings(domains, learners=["maml"], overrides=TINY))
    assert len(config.domains.train) == len(NAMES)
    assert pipeline.startswith('rotogbml(key="domain"')
    with pytest.raises(ConfigError, match="found isic"):
        conflict_run(Settings({"isic": domains["isic"]}))


def test_files_can_be_assigned_to_benchmarks(nine_benchmarks: Path, tmp_path: Path) -> None:
    (tmp_path / "a b = c").mkdir()
    flowers = shutil.copy(nine_benchmarks / "plantae-16.npz", tmp_path / "a b = c" / "flowers.npz")
    found = find_domains(nine_benchmarks, [f"plantae={flowers}"], 16)
    assert list(found) == list(NAMES)
    assert found["plantae"] == str(flowers)
    source = streams(parts("strong", Settings(found, targets=["cub"], overrides=TINY))[0].config, 0)
    assert "flowers" in {domain.name for domain in source.train.domains}
    with pytest.raises(ConfigError, match=r"cars and plantae are the same file, .*cars-16\.npz"):
        find_domains(nine_benchmarks, ["plantae=cars-16.npz"], 16)
    (tmp_path / "data (1)").mkdir()
    shutil.copy(flowers, tmp_path / "data (1)" / "cub.npz")
    with pytest.raises(ConfigError, match="the path contains a parenthesis"):
        find_domains(tmp_path / "data (1)", [], 16)
    for text, message in (
        ("plantae", "--domain must be NAME=PATH; got 'plantae'"),
        ("plants=cars-16.npz", r"unknown benchmark 'plants'; .*Did you mean 'plantae'\?"),
        ("plantae=nothing.npz", "there is no file or folder"),
    ):
        with pytest.raises(ConfigError, match=message):
            find_domains(nine_benchmarks, [text], 16)
    with pytest.raises(ConfigError, match="--data must be an existing folder"):
        find_domains(tmp_path / "missing", [], 16)


def test_the_guide_lists_experiments_and_scales() -> None:
    text = pages.text("guide/reproduce.md")
    for name in (*EXPERIMENTS, "conflict"):
        assert f"| `{name}` |" in text
    table = text[: text.index("## Physics-informed networks")]  # which has scales of the same names
    rows = {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}
    for name, scale in SCALES.items():
        for value in (f"{scale.keys['train.steps']:,}", f"{scale.keys['test.episodes']}", f"{scale.keys['seeds']}"):
            assert f"| {value} |" in rows[name]
        assert f"{scale.keys['train.inner_lr']}, {scale.keys['train.outer_lr']}" in rows[name]
        assert f"{scale.weak_network['size']} px" in rows[name]
        assert f"{scale.weak_network['width']} filters" in rows[name]


def test_benchmarks_are_found_in_lists_and_published_folders_need_lists_first(tmp_path: Path) -> None:
    (tmp_path / "filelists" / "CropDiseases").mkdir(parents=True)
    (tmp_path / "filelists" / "CropDiseases" / "novel.json").touch()
    assert find_domains(tmp_path, [], 16) == {"cropdiseases": str(tmp_path / "filelists" / "CropDiseases")}
    (tmp_path / "CUB_200_2011" / "images").mkdir(parents=True)
    with pytest.raises(DataError, match=r"gradhomog data lists .* cub --out"):
        find_domains(tmp_path, [], 16)
    (tmp_path / "cub.npz").touch()
    assert set(find_domains(tmp_path, [], 16)) == {"cub", "cropdiseases"}


def test_the_benchmarks_are_those_of_the_catalogue() -> None:
    assert set(NAMES) == set(BENCHMARKS)
