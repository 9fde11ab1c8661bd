"""Experiments of multi-task problems: one column for each score, Δm as a drop, and mean ranks beside the papers'."""

import json
import statistics
from pathlib import Path

import pytest

from gradhomog.cli import main

PROBLEM = """
    import dataclasses
    import pathlib
    import torch
    from gradhomog import Evaluation, Problem, ProblemSpec, hookimpl

    class Toy(Problem):
        tasks, metric = ("segmentation", "depth"), "loss"

        def __init__(self, run, data: str):
            self.factor = float(pathlib.Path(data, "factor.txt").read_text())
            self.is_single = run.homogenizers == "single-task"
            self.homogenizers = (dataclasses.replace(run, homogenizers="none") if self.is_single else run).pipeline()
            torch.manual_seed(run.seed)
            self.network = torch.nn.Linear(2, 1)

        def losses(self, index):
            [output] = self.network(torch.ones(2))
            return {"segmentation": (output - 3) ** 2, "depth": self.factor * (output + 1) ** 2}

        def validate(self):
            losses = [float(loss.detach()) for loss in self.losses(0).values()]
            return Evaluation(losses, losses, list(self.tasks), "loss")

        def write_artifacts(self, folder):
            first, second = self.validate().scores
            scores = {"mIoU": 1 / (1 + first + self.is_single), "error": 1 + second}
            return {"additional_scores": scores, "additional_metrics": {"mIoU": "accuracy", "error": "error"}}

    @hookimpl
    def gradhomog_problem(name):
        return ProblemSpec(Toy, summary="toy", single_task=True, unused_keys=("network",), defaults={})
"""
PAPER = """
statistics = { score = "score", difference = "difference to LS", published = "paper", excess = "ours − paper" }
[protocols.toy]
settings = { problem = { name = "toy", data = "$data" }, train.validate_every = 1 }
[scales.smoke]
summary = "three steps"
settings = { seeds = 2, train = { steps = 3, outer_lr = 0.02, outer = "sgd" } }
[experiments.toy]
summary = "a toy"
columns.toy = ["toy"]
by_score = true
data = "the folder with factor.txt"
rows = [
    { title = "STL", homogenizers = "single-task" }, { title = "LS" }, { title = "UPGrad", homogenizers = "upgrad" },
    { title = "tuned", homogenizers = "static | static(weights=[1, 4])" },
]
[published.toy]
STL = { mIoU = [50.0] }
LS = { mIoU = [40.0], "Δm %" = [-5.0], "mean rank" = [2.0] }
"""


@pytest.fixture
def toy(tmp_path: Path, gradhomog_install, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    gradhomog_install("toy-dist", PROBLEM, plugin="toy", kind="problems")
    monkeypatch.chdir(tmp_path)
    Path("toy.toml").write_text(PAPER)
    Path("data").mkdir()
    Path("data/factor.txt").write_text("10")
    return ["reproduce", "toy.toml:toy", "--jobs", "1"]


@pytest.mark.slow
@pytest.mark.usefixtures("without_pictures")
def test_columns_are_the_drop_the_mean_rank_and_the_scores_beside_the_papers_numbers(toy, capsys) -> None:
    assert main([*toy, "--data", "data", "--json"]) == 0
    cells = {(cell["column"], cell["row"]): cell for cell in json.loads(capsys.readouterr().out)["cells"]}
    assert list(dict.fromkeys(column for column, _ in cells)) == ["Δm %", "mean rank", "mIoU", "error"]
    records = [json.loads(path.read_text()) for path in Path("runs").glob("**/result.json")]
    by_row = {row: {record["seed"]: record["additional_scores"] for record in records if record["homogenizers"] == text}
              for row, text in (("STL", "single-task"), ("LS", "none"), ("UPGrad", "upgrad"))}  # fmt: skip
    drops = [
        (-(of_run["mIoU"] / single["mIoU"] - 1) + of_run["error"] / single["error"] - 1) / 2
        for of_run, single in ((by_row["LS"][seed], by_row["STL"][seed]) for seed in (0, 1))
    ]
    cell = cells["Δm %", "LS"]
    assert cell["scores"] == pytest.approx([100 * drop for drop in drops])
    assert cell["difference_to_published"] == pytest.approx(100 * statistics.mean(drops) + 5)
    assert ("Δm %", "STL") not in cells
    ranks = [cells["mean rank", row]["mean"] for row in ("LS", "UPGrad", "tuned")]
    assert sum(ranks) == pytest.approx(6)  # 1 + 2 + 3, without the single-task networks
    assert cells["mIoU", "STL"]["published"] == 50
    for row, of_row in by_row.items():
        assert cells["mIoU", row]["mean"] == pytest.approx(
            100 * statistics.mean(run["mIoU"] for run in of_row.values())
        )
    difference = cells["error", "UPGrad"]["mean"] - cells["error", "LS"]["mean"]
    assert cells["error", "UPGrad"]["difference_to_plain"] == pytest.approx(difference)
    assert main([*toy, "--data", "data", "--resume"]) == 0
    printed = capsys.readouterr().out
    for words in ("mean rank  LS", "Δm: drop against single-task networks", "ours − paper"):
        assert words in printed
    assert (Path("runs") / "reproduce-toy-smoke" / "report.html").exists()


def test_without_the_folder_the_message_is_the_command(toy, capsys) -> None:
    assert main(toy) == 2
    error = capsys.readouterr().err
    assert "`toy.toml:toy` needs the folder with factor.txt: gradhomog reproduce toy.toml:toy --data DIR." in error
    assert main([*toy, "--data", "data", "--domain", "a=b"]) == 2
    assert "needs no domains; remove --domain." in capsys.readouterr().err
    Path("toy.toml").write_text(PAPER.replace('columns.toy = ["toy"]', 'columns.toy = ["toy", "other"]'))
    assert main([*toy, "--data", "data"]) == 2
    assert "`experiments.toy.by_score` needs one column" in capsys.readouterr().err
