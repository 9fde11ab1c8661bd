"""Pictures of the experiment `saliency`."""

from pathlib import Path

import numpy as np
import pytest

from gradhomog.experiments.reproduce.comparisons import Settings
from gradhomog.experiments.reproduce.execute import reproduce
from tests.experiments.reproduce.conftest import TINY

pytestmark = pytest.mark.slow


def test_the_report_of_saliency_shows_maps_of_each_benchmark(domains: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    tiny = [*TINY, "network.width=2"]
    outcome = reproduce("saliency", Settings(domains, learners=["fomaml"], overrides=tiny), tmp_path / "out")
    page = (outcome.folder / "report.html").read_text()
    (part,) = outcome.description["comparisons"]
    maps = np.load(next((outcome.folder / part / "runs").glob("*/saliency_maps.npz")))
    assert {len(value) for name, value in maps.items() if name in ("images", "domains")} == {8}
    assert page.count("<figure>") == 2
