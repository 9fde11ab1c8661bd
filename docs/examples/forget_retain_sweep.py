"""The trade-off of `forget_retain.py` over the weight of its first loss: a table and a figure, five seeds.

python docs/examples/forget_retain_sweep.py [OUT]    # an interrupted run continues
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parent))
import forget_retain as example

WEIGHTS, ENDS, SEEDS = [0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0], [0.03, 1.0, 30.0], range(5)
METHODS = {"none": "sum", "auto": "auto", "sago(primary='retain')": "sago", "upgrad": "upgrad, pcgrad"}
COLORS = ["#222222", "#0072B2", "#D55E00", "#009E73"]  # Okabe and Ito
PROTECTED = "auto + static(weights={'retain': 5, '*': 1})"
PROBLEMS = {("ga", "nll"): "gradient ascent", ("npo", "nll"): "NPO", ("learn", "kl"): "new sequences, KL"}


def planned() -> list[tuple[str, str, str, float, int]]:
    """Task, retain loss, method, weight, seed: seven weights of the sum, three of the others."""
    runs = []
    for seed in SEEDS:
        for task, retain in PROBLEMS:
            runs += [(task, retain, "none", weight, seed) for weight in WEIGHTS]
            runs += [(task, retain, method, weight, seed) for method in [*METHODS][1:] for weight in ENDS]
            runs += [(task, retain, PROTECTED, 1.0, seed)]
    return runs


@torch.no_grad()
def measured(model: torch.nn.Module, task: str) -> dict[str, float]:
    """Losses, and shares of tokens that are predicted, of the task's sequences and of those to retain."""
    found = {}
    for name, x in {"task": example.NEW if task == "learn" else example.FORGET, "retain": example.RETAIN}.items():
        found[name] = example.nll(model, x).mean().item()
        right = example.logits(model, x)[:, :, :-1].argmax(1) == x[:, 1:]
        found[f"{name} accuracy"] = right.double().mean().item()
    return found


def score(row: dict, task: str) -> float:
    """Accuracy on the sequences to retain, plus that on new ones or minus that on those to forget."""
    return row["retain accuracy"] + (1 if task == "learn" else -1) * row["task accuracy"]


def interval(rows: list[dict], key: str) -> str:
    """Mean and half of the 95 % interval of Student's t."""
    values = [row[key] for row in rows]
    return f"{np.mean(values):.2f} ± {2.776 * np.std(values, ddof=1) / len(values) ** 0.5:.2f}"


def draw(found: dict, path: Path) -> None:
    """Accuracies over the weight of the first loss, one column for each problem."""
    settings = {"svg.fonttype": "none", "svg.hashsalt": "gradhomog", "font.size": 9, "axes.grid": True}
    style = {"grid.color": "#e6e6e6", "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
    with mpl.rc_context({**settings, **style}):
        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        panels = figure.subplots(2, 3, sharex=True, sharey=True)
        for column, (task, retain) in enumerate(PROBLEMS):
            for key, axes in zip(("retain", "task"), panels[:, column], strict=True):
                for (method, label), color in zip(METHODS.items(), COLORS, strict=True):
                    weights = [weight for weight in WEIGHTS if (task, retain, method, weight) in found]
                    rows = [found[task, retain, method, weight] for weight in weights]
                    means = [np.mean([row[f"{key} accuracy"] for row in members]) for members in rows]
                    axes.plot(weights, means, marker="o", markersize=4, color=color, label=label)
                axes.set(xscale="log", xticks=ENDS, xticklabels=[f"{weight:g}" for weight in ENDS], ylim=(-0.03, 1.03))
                axes.minorticks_off()
            panels[0][column].set(title=PROBLEMS[task, retain], xlabel="to retain: high")
            panels[1][column].set_xlabel("to learn: high" if task == "learn" else "to forget: low")
        figure.supylabel("accuracy", fontsize=9)
        figure.supxlabel("weight of the loss that forgets or learns", fontsize=9)
        figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside right center")
        figure.savefig(path, metadata={"Date": None})


def main(out: str = "runs/forget-retain") -> None:
    torch.set_num_threads(1)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "results.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    found = {tuple(row["run"]): row for row in rows}
    old: dict[int, torch.nn.Module] = {}
    for run in planned():
        task, retain, method, weight, seed = run
        if run not in found:
            if seed not in old:
                old[seed] = example.pretrained(seed)
            torch.manual_seed(seed)
            model = example.train(old[seed], method, {"retain": (retain, 1.0), "task": (task, weight)})
            found[run] = {"run": run, **measured(model, task)}
            with file.open("a") as stream:
                stream.write(json.dumps(found[run]) + "\n")
    groups: dict[tuple, list[dict]] = {}
    for run in planned():
        groups.setdefault(run[:4], []).append(found[run])
    for (task, retain), name in PROBLEMS.items():
        scores = {w: np.mean([score(row, task) for row in groups[task, retain, "none", w]]) for w in WEIGHTS}
        best = max(WEIGHTS, key=lambda weight: scores[weight])
        print(f"\n| {name} | weight | retain loss | task loss | accuracy: retain | task |\n|---|---|---|---|---|---|")
        for method, label in {**METHODS, PROTECTED: PROTECTED}.items():
            for weight in WEIGHTS:
                if members := groups.get((task, retain, method, weight)):
                    tuned = " (tuned)" if (method, weight) == ("none", best) else ""
                    keys = ("retain", "task", "retain accuracy", "task accuracy")
                    print(f"| {label}{tuned} | {weight:g} | {' | '.join(interval(members, key) for key in keys)} |")
    draw(groups, folder / "forget-retain.svg")


if __name__ == "__main__":
    main(*sys.argv[1:])
