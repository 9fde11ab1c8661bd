"""Diagnose problems at 5 % of training, and draw the gain of homogenizers at its end beside the diagnosis.

The gain is that of the best of four homogenizers over the best of four static weights, both chosen by validation, and
over plain training. Run in the root of the repository. Finished parts are kept, so that an interrupted run continues:

    python docs/examples/where-surgery-helps/predict.py [OUT] [PROBLEM ...]
"""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

HERE = Path(__file__).parent
HIGHER_IS_BETTER = ("accuracy", "r2")


class Gain(NamedTuple):
    """A paired difference in percent, with half of its 95 % interval."""

    mean: float
    half_width: float

    def __str__(self) -> str:
        return f"{self.mean:+.1f} ± {self.half_width:.1f}"


class Point(NamedTuple):
    """A problem: the diagnosis, and the gains in percent of the error of static weights and of plain training."""

    problem: str
    noise_scale: float
    lowest_cosine: float
    largest_ratio: float
    codes: list[str]
    to_static: Gain
    to_plain: Gain


def gradhomog(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "gradhomog", *arguments], check=True, stdout=subprocess.DEVNULL)


def measure(path: Path, out: Path) -> Point:
    """Diagnose and compare, unless the results exist."""
    diagnosed, compared = out / path.stem / "diagnosis", out / path.stem / "comparison"
    if not (diagnosed / "diagnosis.json").exists():
        gradhomog("diagnose", str(path), "--batches", "96", "--seconds", "0", "--out", str(diagnosed))
    if not (compared / "report.html").exists():
        gradhomog("compare", str(path), "--out", str(compared), *(["--resume"] if compared.exists() else []))
    return read(path.stem, diagnosed, compared)


def read(problem: str, diagnosed: Path, compared: Path) -> Point:
    found = json.loads((diagnosed / "diagnosis.json").read_text())["diagnosis"]
    command = [sys.executable, "-m", "gradhomog", "report", str(compared), "--json"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    rows = {row["label"]: row for row in report["rows"]}
    (best,) = (row for label, row in rows.items() if label.startswith("pcgrad"))
    higher = report["metric"] in HIGHER_IS_BETTER

    def gain(label: str, difference: dict[str, float]) -> Gain:
        score = rows[label]["score"]["mean"]
        error, sign = (1 - score, 1) if higher else (score, -1)
        return Gain(sign * 100 * difference["mean"] / error, 100 * difference["half_width"] / error)

    return Point(
        problem,
        numbers(found["noise"]["step_noise_scale"]["value"])[0],
        min(numbers(found["expected"]["cosines"]["value"]), default=math.nan),
        max(numbers(found["norm_ratios"]["value"]), default=math.nan),
        [one["code"] for one in found["recommendation"]],
        gain("static (tuned)", best["to_baseline"]["difference"]),
        gain("plain", best["to_plain"]["difference"]),
    )


def numbers(nested: Any) -> list[float]:
    """The numbers of nested lists, without None, which marks unresolved ones."""
    if isinstance(nested, list):
        return [number for item in nested for number in numbers(item)]
    return [] if nested is None else [float(nested)]


def draw(points: list[Point], path: Path) -> None:
    """The gains over the noise scale of the plain step, and over cosines and norms of expected gradients."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    largest = 3 * max(point.noise_scale for point in points if math.isfinite(point.noise_scale))
    titles = ("noise scale", "lowest cosine", "largest ratio of norms")
    for axes, title in zip(figure.subplots(1, 3, sharey=True), titles, strict=True):
        for number, point in enumerate(points):
            x = {"noise scale": min(point.noise_scale, largest), "lowest cosine": point.lowest_cosine}
            place, color = x.get(title, point.largest_ratio), f"C{number}"
            to_plain, to_static = point.to_plain, point.to_static
            axes.errorbar(place, to_plain.mean, to_plain.half_width, fmt="o", capsize=3, color=color, fillstyle="none")
            axes.errorbar(
                place, to_static.mean, to_static.half_width, fmt="o", capsize=3, color=color, label=point.problem
            )
        axes.axhline(0, color="gray", linewidth=0.8)
        axes.set_xlabel(title)
    figure.axes[0].set_xscale("log")
    figure.supxlabel("at 5 % of training")
    figure.axes[0].set_ylabel("gain, % of the error\nfilled: over tuned static weights; open: over plain")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.savefig(path)


def main(out: str = "runs/where-surgery-helps", *problems: str) -> None:
    paths = [path for path in sorted(HERE.glob("*.toml")) if not problems or path.stem in problems]
    points = [measure(path, Path(out)) for path in paths]
    print(
        "| problem | noise scale | lowest cosine | norm ratio | recommendation | gain over static, % | over plain, % |"
    )
    print("|---|---|---|---|---|---|---|")
    for point in sorted(points, key=lambda point: point.noise_scale):
        numbers = f"{point.noise_scale:.2g} | {point.lowest_cosine:.2f} | {point.largest_ratio:.2g}".replace("nan", "–")
        print(f"| {point.problem} | {numbers} | {', '.join(point.codes)} | {point.to_static} | {point.to_plain} |")
    draw(points, Path(out) / "prediction.svg")


if __name__ == "__main__":
    main(*sys.argv[1:])
