"""Files of papers: their numbers, those of third parties, and errors in them."""

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from gradhomog.cli import main
from gradhomog.errors import ConfigError, PluginLoadError, UnknownPluginError
from gradhomog.experiments.reproduce.comparisons import Settings, planned_comparisons
from gradhomog.experiments.reproduce.paper_schema import parse_paper, read_experiment
from gradhomog.registry import Registry, using
from tests.docs import pages

ENTRY_POINTS, MINIMAL = re.findall(r"```toml\n(.*?)```", pages.text("guide/papers.md"), re.DOTALL)
"""The paper of a third party in the guide."""


@pytest.mark.parametrize("shots", ["1-shot", "5-shot"])
def test_printed_averages_are_the_means_of_the_columns(shots: str) -> None:
    paper, _ = read_experiment("strong")
    for row in paper.published["strong"].values():
        for name, block in paper.experiments["strong"].averages.items():
            mean = sum(row[f"{benchmark} {shots}"][0] for benchmark in block) / len(block)
            assert row[f"average {name} {shots}"][0] == pytest.approx(mean, abs=0.0101)


def test_the_ablation_and_the_tables_have_the_same_numbers_of_imaml() -> None:
    published = read_experiment("weak")[0].published
    for table, benchmarks in (("weak", ("miniimagenet", "cub")), ("strong", ("cars", "eurosat"))):
        for column in (f"{name} {shots}" for name in benchmarks for shots in ("1-shot", "5-shot")):
            for row, in_ablation in (("iMAML", "plain"), ("iMAML-RotoGBML", "isi + rotate + reweight")):
                assert published[table][row][column][0] == published["ablation"][in_ablation][column][0]


def test_numbers_are_those_of_the_papers_and_belong_to_rows() -> None:
    paper, _ = read_experiment("weak")
    assert paper.published["weak"]["MAML"]["cub 1-shot"] == [54.73, 0.97]
    assert paper.published["strong"]["MAML"]["cub 1-shot"] == [40.66]
    for name, table in paper.published.items():
        titles = {row.title.replace("$learner", learner) for row in paper.experiments[name].rows
                  for learner in paper.experiments[name].learners}  # fmt: skip
        assert set(table) - titles == ({"Random"} if name == "strong" else set())
    pinn, _ = read_experiment("pinn")
    numbers = pinn.published["pinn"]
    assert set(numbers) <= {row.title for row in pinn.experiments["pinn"].rows}
    assert numbers["Adam"]["klein_gordon"] == [0.0792, 0.0386]
    for column, count, best in (("helmholtz", 9, "DCGD"), ("burgers_config", 3, "M-ConFIG")):
        of_column = {row: cells[column][0] for row, cells in numbers.items() if column in cells}
        assert len(of_column) == count
        assert min(of_column, key=lambda row: of_column[row]) == best


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the file of a paper, whose entry points are `valley` and `absent`."""
    (tmp_path / "my_papers").mkdir()
    (tmp_path / "my_papers" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_papers", raising=False)  # of another test's folder
    path = tmp_path / "my_papers" / "valley.toml"
    path.write_text(MINIMAL)
    declared = tomllib.loads(ENTRY_POINTS)["project"]["entry-points"]["gradhomog.papers"]
    points = [metadata.EntryPoint(name, value, "gradhomog.papers")
              for name, value in {**declared, "absent": "my_papers.valley:table2"}.items()]  # fmt: skip
    kinds = ("homogenizers", "problems")
    points += [point for kind in kinds for point in metadata.entry_points(group=f"gradhomog.{kind}")]
    with using(Registry(points)):
        yield path


def test_a_third_party_adds_a_paper_by_a_file_and_an_entry_point(
    third_party: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "valley", "--jobs", "1", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "landscape  PCGrad" in printed
    assert "0.5 (0.1)" in printed
    assert main(["reproduce", "valley", "--data", "x"]) == 2
    assert "`valley` needs no data; remove --data" in capsys.readouterr().err


def test_names_and_files_that_cannot_be_read_raise(third_party: Path) -> None:
    with pytest.raises(UnknownPluginError, match=r"unknown paper 'valey'\. Did you mean 'valley'\?"):
        read_experiment("valey")
    with pytest.raises(PluginLoadError, match=r"paper 'absent' .*has no experiment 'table2'; it has table1"):
        read_experiment("absent")
    third_party.write_text("]")
    with pytest.raises(PluginLoadError, match=r"paper 'valley' .*cannot be read: invalid TOML"):
        read_experiment("valley")
    third_party.unlink()
    with pytest.raises(PluginLoadError, match=r"paper 'valley' .*cannot be read: .*valley\.toml"):
        read_experiment("valley")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('score = "loss"', 'skore = "loss"', "`statistics`: unknown name 'skore'; known: difference, "),
        ("columns.toy", "columns.toys", r"`experiments.table1.columns`: unknown name 'toys'; known: toy"),
        ('homogenizers = "pcgrad"', 'group = "g"', r"`experiments.table1.rows`: unknown name 'g'"),
        ('homogenizers = "pcgrad"', "colour = 1", r"unknown key `experiments.table1.rows\[1\].colour`"),
        ("[published.table1]", "[published.table2]", "`published`: unknown name 'table2'"),
        ("[0.5, 0.1]", "[]", r"`published` must be .*length ≥ 1"),
        ('summary = "20 steps, one seed: a check of the command"', "", r"`scales.smoke.summary` is missing"),
        ('"PCGrad", homogenizers', "3, homogenizers", r"`experiments.table1.rows\[1\].title` must be a text; got 3"),
    ],
)  # fmt: skip
def test_errors_in_a_file_have_the_path_of_the_key(old: str, new: str, message: str) -> None:
    assert old in MINIMAL
    with pytest.raises(ConfigError, match=message):
        parse_paper(MINIMAL.replace(old, new))


def test_an_unknown_variable_raises(third_party: Path) -> None:
    third_party.write_text(MINIMAL.replace("pcgrad", "$static"))
    with pytest.raises(ConfigError, match=r"'\$static': unknown variable 'static'; known: column"):
        planned_comparisons("valley", Settings({}))
