"""Diagnose problems at 5 % of training, and draw the gain of homogenizers at its end beside the diagnosis.

The gain is that of the best of four homogenizers over the best of four static weights, both chosen by validation. Run
in the root of the repository. Finished parts are kept, so that an interrupted run continues:

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


class Point(NamedTuple):
    """A problem: what the diagnosis reported, and the gain in percent of the error of tuned static weights."""

    problem: str
    noise_scale: float
    lowest_cosine: float
    largest_ratio: float
    codes: list[str]
    gain: float
    half_width: float


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
    static = rows["static (tuned)"]["score"]["mean"]
    difference = best["to_baseline"]["difference"]
    higher = report["metric"] in HIGHER_IS_BETTER
    error, sign = (1 - static, 1) if higher else (static, -1)
    return Point(
        problem,
        numbers(found["noise"]["step_noise_scale"]["value"])[0],
        min(numbers(found["expected"]["cosines"]["value"]), default=math.nan),
        max(numbers(found["norm_ratios"]["value"]), default=math.nan),
        [one["code"] for one in found["recommendation"]],
        sign * 100 * difference["mean"] / error,
        100 * difference["half_width"] / error,
    )


def numbers(nested: Any) -> list[float]:
    """The numbers of nested lists, without None, which marks unresolved ones."""
    if isinstance(nested, list):
        return [number for item in nested for number in numbers(item)]
    return [] if nested is None else [float(nested)]


def draw(points: list[Point], path: Path) -> None:
    """The gain over the noise scale of the plain step, and over the lowest cosine of expected gradients."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    largest = 3 * max(point.noise_scale for point in points if math.isfinite(point.noise_scale))
    for axes, title in zip(figure.subplots(1, 2, sharey=True), ("noise scale", "lowest cosine"), strict=True):
        for point in points:
            x = min(point.noise_scale, largest) if title == "noise scale" else point.lowest_cosine
            axes.errorbar(x, point.gain, point.half_width, fmt="o", capsize=3)
            axes.annotate(point.problem, (x, point.gain), textcoords="offset points", xytext=(5, 4), fontsize=8)
        axes.axhline(0, color="gray", linewidth=0.8)
        axes.set_xlabel(f"{title} at 5 % of training")
    figure.axes[0].set_xscale("log")
    figure.axes[0].set_ylabel("gain over tuned static weights, % of the error")
    figure.savefig(path)


def main(out: str = "runs/where-surgery-helps", *problems: str) -> None:
    paths = [path for path in sorted(HERE.glob("*.toml")) if not problems or path.stem in problems]
    points = [measure(path, Path(out)) for path in paths]
    print("| problem | noise scale | lowest cosine | largest norm ratio | recommendation | gain, % of the error |")
    print("|---|---|---|---|---|---|")
    for point in sorted(points, key=lambda point: point.noise_scale):
        print(
            f"| {point.problem} | {point.noise_scale:.2g} | {point.lowest_cosine:.2f} | {point.largest_ratio:.2g} | "
            f"{', '.join(point.codes)} | {point.gain:+.1f} ± {point.half_width:.1f} |"
        )
    draw(points, Path(out) / "prediction.svg")


if __name__ == "__main__":
    main(*sys.argv[1:])
