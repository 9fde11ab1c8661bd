"""Experiments as lists of comparisons: rows, domains, splits and settings of the papers."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradhomog.errors import ConfigError, DataError
from gradhomog.experiments.episodes.splits import streams
from gradhomog.experiments.execution.methods import make_methods
from gradhomog.experiments.reproduce.comparisons import Settings, find_domains, planned_comparisons
from gradhomog.experiments.reproduce.paper_schema import installed_experiments, read_experiment
from gradhomog.experiments.training.trainer import learning_rate
from tests.docs import pages
from tests.experiments.reproduce.conftest import NAMES, TINY

EXPERIMENTS = tuple(installed_experiments())
SCALES = ("smoke", "small", "medium", "paper")


def settings_of(name: str, domains: dict[str, str], scale: str = "smoke", **choices: Any) -> Settings:
    return Settings(domains if read_experiment(name)[0].benchmarks else {}, scale, **choices)


@pytest.mark.slow_after_first
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_row_of_every_experiment_is_a_method_of_its_configuration(
    name: str, scale: str, domains: dict[str, str]
) -> None:
    found = planned_comparisons(name, settings_of(name, domains, scale))
    assert len({part.name for part in found}) == len(found)
    for part in found:
        methods = make_methods(part.config)
        assert [method.learner for method in methods] == [row.learner or part.config.learners[0] for row in part.rows]
        assert [method.tuned for method in methods] == ["static (tuned)" in row.title for row in part.rows]


@pytest.mark.parametrize(
    ("name", "columns", "comparisons", "rows"),
    [
        ("weak", 4, 44, 104), ("strong", 16, 112, 320), ("ablation", 8, 8, 80), ("beta", 8, 8, 56),
        ("temperature", 8, 8, 56), ("backbone", 8, 24, 48), ("saliency", 1, 1, 2),
        ("pinn", 4, 11, 57), ("nyuv2", 1, 1, 24), ("office-home", 1, 1, 24), ("gradstats", 1, 1, 10),
    ],
)  # fmt: skip
def test_an_experiment_has_the_columns_and_rows_of_the_paper(
    name: str, columns: int, comparisons: int, rows: int, domains: dict[str, str]
) -> None:
    found = planned_comparisons(name, settings_of(name, domains, "paper"))
    assert len({part.column for part in found}) == columns
    assert (len(found), sum(len(part.rows) for part in found)) == (comparisons, rows)


def test_smoke_has_the_first_column_shots_and_learner_unless_others_are_chosen(domains: dict[str, str]) -> None:
    present = {name: text for name, text in domains.items() if name != "miniimagenet"}
    found = planned_comparisons("strong", Settings(domains))
    assert {part.column for part in [*found, *planned_comparisons("ablation", Settings(present))]} == {"cub 1-shot"}
    assert [part.config.learner for part in found] == ["relationnet", "relationnet_lrp", "relationnet_ata", "anil"]
    found = planned_comparisons(
        "strong", Settings(domains, learners=["MAML"], targets=["isic", "cars"], shots=[5], others=False)
    )
    assert [part.name for part in found] == ["cars-5-shot-maml", "isic-5-shot-maml"]


def test_the_strong_problem_leaves_the_target_out_and_trains_on_all_classes_of_specialized_benchmarks(
    domains: dict[str, str],
) -> None:
    specialized = ("chestx", "cropdiseases", "eurosat", "isic")
    settings = Settings(domains, "small", learners=["maml"], shots=[1], others=False, overrides=TINY)
    for part in planned_comparisons("strong", settings):
        target = part.column.split()[0]
        chosen = part.config.domains
        assert (chosen.test, chosen.setting, len(chosen.train)) == ([domains[target]], "strong", 8)
        assert not any(text.startswith(domains[target]) for text in chosen.train)
        source = streams(part.config, 0)
        assert source.test.split == "all"
        for domain in source.train.domains:
            count = 5 if domain.name.removesuffix("-16") in specialized else 10
            assert len(domain.classes("train")) == count
        assert not {domain.name.removesuffix("-16") for domain in source.validation.domains} & set(specialized)
        assert all(len(set(source.train.batch(index).domains)) == 4 for index in range(3))


def test_the_weak_problem_tests_other_classes_of_the_same_data(domains: dict[str, str]) -> None:
    settings = Settings(domains, "small", learners=["maml"], shots=[1], others=False, overrides=TINY)
    for part in planned_comparisons("weak", settings):
        assert part.config.domains.train == part.config.domains.test
        assert part.config.domains.setting == "weak"
        assert streams(part.config, 0).test.split == "test"


def test_choices_select_rows_and_columns(domains: dict[str, str]) -> None:
    settings = Settings(domains, learners=["MAML", "fomaml"], targets=["cub", "isic"], shots=[1], others=False)
    found = planned_comparisons("strong", settings)
    assert [part.name for part in found] == [
        "cub-1-shot-maml", "cub-1-shot-fomaml", "isic-1-shot-maml", "isic-1-shot-fomaml",
    ]  # fmt: skip
    assert [row.title for row in found[1].rows] == [
        "fomaml", "fomaml-RotoGBML", "fomaml, static (tuned)", "fomaml, pcgrad",
    ]  # fmt: skip
    chosen = replace(settings, targets=["cub"], methods=["maml-rotogbml"])
    assert [row.title for part in planned_comparisons("strong", chosen) for row in part.rows] == ["MAML-RotoGBML"]
    found = planned_comparisons("ablation", Settings(domains, learners=["MAML", "fomaml"], targets=["cub"]))
    assert [part.rows[0].title for part in found] == ["MAML, plain", "fomaml, plain"]


def test_two_expressions_of_one_learner_have_folders_of_their_names(domains: dict[str, str]) -> None:
    settings = Settings(domains, learners=["maml", "maml(first_order=true)"], targets=["cub"], shots=[1], others=False)
    names = [part.name for part in planned_comparisons("weak", settings)]
    assert names[0] == "cub-1-shot-maml"
    assert names[1].startswith("cub-1-shot-maml-first_order-true-")
    long = [f"maml(inner_lr={value}, adapt={['head.*'] * 40})" for value in (1, -1)]
    names = [part.name for part in planned_comparisons("weak", replace(settings, learners=long))]
    assert len(set(names)) == 2
    assert max(map(len, names)) < 80


@pytest.mark.parametrize(("overrides", "steps"), [([], 1050), (["train.steps=500"], 500)])
def test_a_group_with_a_share_of_the_steps_has_shares_of_its_own_steps(overrides, steps):
    settings = Settings({}, scale="small", targets=["klein_gordon"], overrides=overrides)
    trains = {one.name: one.config.train for one in planned_comparisons("pinn_gauss_newton", settings)}
    assert (trains["klein_gordon"].steps, trains["klein_gordon"].validate_every) == (steps, round(steps / 10))
    gauss_newton = trains["klein_gordon-gn"]
    assert gauss_newton.steps == round(0.114 * steps)
    assert gauss_newton.validate_every == round(0.1 * gauss_newton.steps)


def test_shares_of_the_training_steps_follow_the_scale_and_the_overrides(domains: dict[str, str]) -> None:
    for settings, steps in (
        (Settings(domains, "small"), 400),
        (Settings(domains, learners=["MAML++"], overrides=["train.steps=50"]), 50),
    ):
        learners = {row.title: row.learner for part in planned_comparisons("weak", settings) for row in part.rows}
        assert learners["MTL"] == f"meta_transfer(pretrain_steps={steps // 2})"
        assert learners["MAML++"] == f"mamlpp(multi_step_steps={round(steps * 0.15)})"
    # With the period of 20 steps, the last rate of 5,000 would be 2e-232.
    for part in planned_comparisons("pinn", Settings({}, overrides=["train.steps=5000"])):
        train = part.config.train
        assert (train.steps, train.validate_every, train.log_every, train.checkpoint_every) == (5000, 50, 50, 250)
        decay = 1 if part.column == "burgers_config" else 0.9**49
        assert learning_rate(train, 4999) == pytest.approx(train.outer_lr * decay)
    kept = planned_comparisons("pinn", Settings({}, overrides=["train.steps=5000", "train.lr_decay_every=7"]))
    assert {part.config.train.lr_decay_every for part in kept} == {7}


def test_absent_benchmarks_are_omitted(domains: dict[str, str]) -> None:
    present = {name: domains[name] for name in ("miniimagenet", "cub", "eurosat")}
    found = planned_comparisons("strong", Settings(present, "small", learners=["maml"], shots=[1], others=False))
    assert [part.column for part in found] == ["cub 1-shot", "eurosat 1-shot"]
    assert len(found[0].config.domains.train) == 2


@pytest.mark.parametrize(
    ("name", "choices", "message"),
    [
        ("strong", {"targets": ["cup"]}, r"`strong` has no target 'cup'.*Did you mean 'cub'\?"),
        ("strong", {"methods": ["Adam"], "targets": ["cub"]}, "no column of cub has a row Adam"),
        ("strong", {"overrides": ["learner=maml"]}, "--set learner: the experiment sets this key; use --learner"),
        ("strong", {"overrides": ["episodes.shots = 5"]}, r"--set episodes\.shots: .* use --shots"),
        ("pinn", {"learners": ["maml"], "shots": [1]}, "(?s)`--learner` has no effect in `pinn`.*`--shots`"),
        ("pinn", {"methods": ["PCgrat"]}, r"`pinn` has no method 'PCgrat'.*Did you mean 'PCGrad'"),
        ("pinn", {"overrides": ["problem.name=burgers"]}, r"--set problem.name: .* use --target"),
        ("pinn", {"overrides": ["problem.error=mse"]}, r"--set problem.error: .* use `gradhomog compare`"),
        ("pinn", {"overrides": ["problem={state='last'}"]}, r"--set problem: .* use --target"),
    ],
)
def test_errors_name_the_choice(name: str, choices: dict[str, Any], message: str, domains: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=message):
        planned_comparisons(name, settings_of(name, domains, **choices))


def test_equal_rows_are_computed_once_and_other_settings_have_no_published_numbers(domains: dict[str, str]) -> None:
    choices: dict[str, Any] = {"learners": ["MAML"], "targets": ["cub"], "others": False}
    (part,) = planned_comparisons("strong", Settings(domains, learners=["relationnet"], targets=["cub"]))[:1]
    assert [row.title for row in part.rows][:2] == ["RelationNet", "RelationNet-FT"]
    assert len({row.homogenizers for row in part.rows}) == len(part.rows)
    (part,) = planned_comparisons("strong", Settings(domains, shots=[1, 1], **choices))
    published = read_experiment("strong")[0].published["strong"]
    assert [row.published in published for row in part.rows] == [True, True, False, False]
    (part,) = planned_comparisons("strong", Settings(domains, overrides=["episodes.ways=3"], **choices))
    assert {row.published for row in part.rows} == {None}


def test_errors_without_data_list_the_benchmarks_and_the_options(domains: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"`weak` needs at least one of the benchmarks miniimagenet, cub; .* --data"):
        planned_comparisons("weak", Settings({}))
    with pytest.raises(ConfigError, match="target cub needs at least one of miniimagenet, cars"):
        planned_comparisons("strong", Settings({"cub": "cub.npz", "isic": "isic.npz"}, targets=["cub"]))


def test_files_can_be_assigned_to_benchmarks(nine_benchmarks: Path, tmp_path: Path) -> None:
    (tmp_path / "a $b = c").mkdir()
    flowers = shutil.copy(nine_benchmarks / "plantae-16.npz", tmp_path / "a $b = c" / "flowers.npz")
    found = find_domains(NAMES, nine_benchmarks, [f"plantae={flowers}"], 16)
    assert tuple(found) == NAMES
    assert found["plantae"] == str(flowers)
    source = streams(planned_comparisons("strong", Settings(found, targets=["cub"], overrides=TINY))[0].config, 0)
    assert "flowers" in {domain.name for domain in source.train.domains}
    (tmp_path / "data (1)").mkdir()
    shutil.copy(flowers, tmp_path / "data (1)" / "cub.npz")
    for folder, assigned, message in (
        (nine_benchmarks, ["plantae=cars-16.npz"], r"cars and plantae are the same file, .*cars-16\.npz"),
        (tmp_path / "data (1)", [], "the path contains a parenthesis"),
        (nine_benchmarks, ["plants=cars-16.npz"], r"unknown benchmark 'plants'; .*Did you mean 'plantae'\?"),
    ):
        with pytest.raises(ConfigError, match=message):
            find_domains(NAMES, folder, assigned, 16)


def test_benchmarks_are_found_in_lists_and_published_folders_need_lists_first(tmp_path: Path) -> None:
    (tmp_path / "filelists" / "CropDiseases").mkdir(parents=True)
    (tmp_path / "filelists" / "CropDiseases" / "novel.json").touch()
    assert find_domains(NAMES, tmp_path, [], 16) == {"cropdiseases": str(tmp_path / "filelists" / "CropDiseases")}
    (tmp_path / "CUB_200_2011" / "images").mkdir(parents=True)
    with pytest.raises(DataError, match=r"gradhomog data lists .* cub --out"):
        find_domains(NAMES, tmp_path, [], 16)
    (tmp_path / "cub.npz").touch()
    assert set(find_domains(NAMES, tmp_path, [], 16)) == {"cub", "cropdiseases"}


def test_the_guide_lists_experiments_and_scales() -> None:
    text = pages.text("guide/reproduce.md")
    assert all(f"| `{name}` |" in text for name in EXPERIMENTS if name != "pinn")
    table = text[: text.index("## Physics-informed networks")]  # which has scales of the same names
    rows = {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}
    for name, scale in read_experiment("weak")[0].scales.items():
        train, network = scale.settings["train"], scale.settings["network"]
        for value in (f"{train['steps']:,}", f"{scale.settings['test']['episodes']}", f"{scale.settings['seeds']}"):
            assert f"| {value} |" in rows[name]
        assert f"{train['inner_lr']}, {train['outer_lr']}" in rows[name]
        assert f"{network['size']} px" in rows[name]
        assert f"{network['width']} filters" in rows[name]
