"""The experiment `pinn`: rows, settings of the papers, the table, resumption and errors."""

from __future__ import annotations

import json
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from gradhomog.cli import main
from gradhomog.errors import ConfigError
from gradhomog.experiments.execution import plan
from gradhomog.experiments.reproduce.pinn import COLUMNS, SCALES, PinnSettings, parts, reproduce_pinn
from gradhomog.experiments.reproduce.pinn.methods import TITLES
from gradhomog.experiments.reproduce.pinn.published import PublishedError, published_error
from gradhomog.experiments.reproduce.pinn.report import notes, text_table
from gradhomog.experiments.reproduce.pinn.table import Table, to_json
from gradhomog.experiments.results.plan import Run
from gradhomog.experiments.training.trainer import learning_rate, make_trainable

TINY = [
    "network.width=4", "problem.depth=2", "problem.interior=8", "problem.boundary=2", "train.steps=3",
    "train.validate_every=2", "train.log_every=1", "seeds=2",
]  # fmt: skip
METHODS = ["Adam", "UPGrad", "PCGrad"]


@pytest.fixture(scope="module")
def without_figures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradhomog.experiments.report.page._save_figures", lambda *arguments: {})
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory, without_figures):
    settings = PinnSettings("smoke", ["klein_gordon", "burgers_config"], METHODS, TINY)
    return settings, reproduce_pinn(settings, folder := tmp_path_factory.mktemp("out") / "pinn"), folder


def test_every_row_is_a_method_of_its_configuration():
    for scale in SCALES:
        for part in parts(PinnSettings(scale)):
            methods = plan.methods(part.config)
            assert len(methods) == len(part.rows)
            assert [method.tuned for method in methods] == [row.title == "static (tuned)" for row in part.rows]


def test_the_paper_scale_has_the_settings_of_the_papers():
    by_name = {part.name: part.config for part in parts(PinnSettings("paper"))}
    assert len(by_name) == 2 * len(COLUMNS)
    for name in ("helmholtz", "burgers", "klein_gordon"):
        config = by_name[name]
        assert (config.train.steps, config.seeds, config.network.width, config.problem["depth"]) == (50_000, 10, 50, 3)
        rates = [learning_rate(config.train, index) for index in (0, 999, 1000, 49_999)]
        assert rates == pytest.approx([1e-3, 1e-3, 9e-4, 1e-3 * 0.9**49])
        assert config.problem["conditions"] == "merged"
        assert by_name[f"{name}-tracked"].train.beta1 == 0
    interior = {name: by_name[name].problem["interior"] for name in ("helmholtz", "burgers", "klein_gordon")}
    assert interior == {"helmholtz": 1280, "burgers": 1280, "klein_gordon": 128}
    config = by_name["burgers_config"]
    assert (config.train.steps, config.train.outer_lr, config.train.lr_decay) == (5000, 1e-4, 1)
    assert make_trainable(config, Run("burgers", "none", 0)).tasks == ("pde", "initial", "boundary")
    assert sum(p.numel() for p in make_trainable(config, Run("burgers", "none", 0)).parameters()) == 10_401


def test_the_rate_follows_an_overridden_number_of_steps():
    """With the period of 20 steps, the last rate of 5,000 would be 2e-232."""
    for part in parts(PinnSettings("smoke", overrides=["train.steps=5000"])):
        train = part.config.train
        assert (train.steps, train.validate_every, train.log_every, train.checkpoint_every) == (5000, 50, 50, 250)
        decay = 1 if part.column == "burgers_config" else 0.9**49
        assert learning_rate(train, 4999) == pytest.approx(train.outer_lr * decay)
    kept = parts(PinnSettings("smoke", overrides=["train.steps=5000", "train.lr_decay_every=7"]))
    assert {part.config.train.lr_decay_every for part in kept} == {7}


def test_printed_numbers_are_complete_and_belong_to_rows():
    text = resources.files("gradhomog.experiments.reproduce.pinn").joinpath("published.toml").read_text()
    tables = tomllib.loads(text)
    assert set(tables) == set(COLUMNS)
    for column, table in tables.items():
        assert set(table) <= {*COLUMNS[column].methods, *COLUMNS[column].tracked}
        assert len(table) == (3 if column == "burgers_config" else 9)
        best = "M-ConFIG" if column == "burgers_config" else "DCGD"
        assert table[best][0] == min(numbers[0] for numbers in table.values())
    assert published_error("klein_gordon", "Adam") == PublishedError(0.0792, 0.0386)
    assert published_error("helmholtz", "UPGrad") is None


def test_cells_are_means_of_the_results_beside_the_printed_errors(finished):
    _, outcome, folder = finished
    cells = {(cell.column, cell.row): cell for cell in outcome.table.cells}
    assert len(cells) == 5  # the notebook has no row PCGrad
    for cell in cells.values():
        results = [json.loads(path.read_text()) for path in (folder / cell.column / "runs").glob("*/result.json")]
        text = {"Adam": "none", "UPGrad": "upgrad", "PCGrad": "pcgrad"}[cell.row]
        scores = {record["seed"]: record["scores"][0] for record in results if record["homogenizers"] == text}
        assert cell.seed_errors == scores
        assert cell.ours.mean == pytest.approx(sum(scores.values()) / 2)
    cell = cells["klein_gordon", "PCGrad"]
    assert cell.published.mean == 0.0286
    assert cell.ratio == pytest.approx(cell.ours.mean / 0.0286)
    plain = cells["klein_gordon", "Adam"]
    assert plain.to_plain is None
    assert cell.to_plain.mean == pytest.approx(cell.ours.mean - plain.ours.mean, abs=1e-12)


def test_the_text_and_the_page_have_all_rows(finished):
    _, outcome, folder = finished
    text = text_table(outcome.table, outcome.description).text()
    page = (folder / "report.html").read_text()
    for word in (
        "klein_gordon",
        "burgers_config",
        "UPGrad",
        "0.0286 (0.0064)",
        "0.03095",
        "changed by network.width",
    ):
        assert word in text
        assert word in page
    assert "DCGD's Table 1" in text
    assert "ConFIG's notebook" in text
    content = to_json(outcome.table)
    assert content["missing"] == []
    assert content["cells"][0]["published_deviation"] == 0.0386


def test_notes_name_the_sources_of_the_columns_in_the_table(finished):
    _, outcome, _ = finished
    cells = [cell for cell in outcome.table.cells if cell.column == "burgers_config"]
    text = "\n".join(notes(Table(tuple(cells), ()), outcome.description))
    assert "ConFIG's notebook" in text
    assert "DCGD" not in text


def test_numbers_of_the_smallest_scale_are_not_divided_by_the_papers(finished):
    _, outcome, _ = finished
    ratio = next(cell.ratio for cell in outcome.table.cells if cell.ratio)
    assert f"  {ratio:.3g} " not in text_table(outcome.table, outcome.description).text()
    assert f"  {ratio:.3g} " in text_table(outcome.table, {**outcome.description, "scale": "small"}).text()


@pytest.mark.usefixtures("without_figures")
def test_a_finished_experiment_is_resumed_without_training(finished, monkeypatch):
    settings, outcome, folder = finished
    monkeypatch.setattr("gradhomog.experiments.reproduce.execute.compare", None)
    assert reproduce_pinn(settings, folder, resume=True).table == outcome.table
    with pytest.raises(ConfigError, match="has other settings: `methods`"):
        reproduce_pinn(PinnSettings("smoke", settings.targets, ["Adam"], TINY), folder, resume=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (PinnSettings(targets=["helmholz"]), r"`pinn` has no target 'helmholz'.*Did you mean 'helmholtz'"),
        (PinnSettings(methods=["PCgrat"]), r"`pinn` has no method 'PCgrat'.*Did you mean 'PCGrad'"),
        (PinnSettings(targets=["burgers_config"], methods=["LRA"]), r"no column of burgers_config has a row LRA"),
        (PinnSettings(overrides=["homogenizers=['mgda']"]), r"--set homogenizers: .* use --method"),
        (PinnSettings(overrides=["problem.name=burgers"]), r"--set problem.name: .* use --target"),
        (PinnSettings(overrides=["problem.error=mse"]), r"--set problem.error: .* use `gradhomog compare`"),
        (PinnSettings(overrides=["problem.state=last"]), r"--set problem.state: .* use `gradhomog compare`"),
        (PinnSettings(overrides=["problem.conditions=separate"]), r"--set problem.conditions: .* `gradhomog compare`"),
        (PinnSettings(overrides=["train.steps=ten"]), r"`train.steps` must be an integer ≥ 1; got 'ten'"),
        (PinnSettings(overrides=["train.steps=0"]), r"`train.steps` must be an integer ≥ 1; got 0"),
    ],
)
def test_invalid_choices_raise(settings, message):
    with pytest.raises(ConfigError, match=message):
        parts(settings)


@pytest.mark.usefixtures("without_figures")
def test_the_command_prints_the_table(tmp_path: Path, capsys):
    overrides = [word for text in TINY for word in ("--set", text)]
    command = ["reproduce", "pinn", "--target", "helmholtz", "--method", "adam", "--jobs", "1", *overrides]
    assert main([*command, "--out", str(tmp_path / "a")]) == 0
    assert "0.0609 (0.0231)" in capsys.readouterr().out
    assert main([*command, "--out", str(tmp_path / "a"), "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"][0]["row"] == "Adam"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pinn", "--data", "x", "--shots", "1"], "`pinn` needs no data and has no learner; remove --data, --shots"),
        (["pinn", "--batches", "7"], "remove --batches"),
        (["pinn", "--scale", "smal"], "unknown scale 'smal'"),
        (["weak", "--method", "Adam"], "`--method` selects rows of `pinn`"),
    ],
)
def test_options_without_effect_raise(arguments, message, capsys):
    assert main(["reproduce", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_titles_are_unique_without_case():
    assert len({title.lower() for title in TITLES}) == len(TITLES)
