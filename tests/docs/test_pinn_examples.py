"""`docs/examples`: the scripts with DeepXDE and PINA run and print their error."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest
import torch

from tests.docs import pages
from tests.docs.scripts import printed

EXAMPLES = pages.DOCS / "examples"
pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice, and deprecations within PINA


@pytest.fixture
def _deepxde() -> Iterator[None]:
    os.environ["DDE_BACKEND"] = "pytorch"
    pytest.importorskip("deepxde", reason="needs the extra `deepxde`").optimizers.set_LBFGS_options()
    torch.set_default_device(None)  # DeepXDE sets CUDA where there is a GPU
    yield
    options = pytest.importorskip("deepxde").optimizers.LBFGS_options
    options["iter_per_step"] = 1000


@pytest.mark.usefixtures("_deepxde")
def test_burgers_trains_with_homogenized_adam_and_plain_lbfgs(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("upgrad", "--iterations", "3", "--lbfgs", "2", "--points", "64")
    text = printed(EXAMPLES / "deepxde_burgers.py", capsys, *arguments)
    assert re.search(r"weights: {'pde': \d.*'DirichletBC': \d.*'IC': \d", text)
    assert float(re.findall(r"mean residual: (\S+)", text)[0]) > 0


@pytest.mark.usefixtures("_deepxde")
def test_examples_run_with_methods_that_replace_rows(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("trimmed_mean", "--iterations", "2", "--width", "5")
    assert "weights: {}" in printed(EXAMPLES / "deepxde_helmholtz.py", capsys, *arguments)


@pytest.mark.usefixtures("_deepxde")
def test_helmholtz_prints_its_relative_error(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("uw", "--iterations", "2", "--width", "5")
    text = printed(EXAMPLES / "deepxde_helmholtz.py", capsys, *arguments)
    assert float(re.findall(r"relative L2 error: (\S+)", text)[0]) > 0


def test_poisson_with_pina_prints_its_relative_error(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pina", reason="needs the extra `pina`")
    text = printed(EXAMPLES / "pina_poisson.py", capsys, "upgrad", "--epochs", "2")
    assert re.search(r"weights: {'boundary': \d.*'D': \d", text)
    assert float(re.findall(r"relative L2 error: (\S+)", text)[0]) > 0
