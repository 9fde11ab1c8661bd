"""The complete example on each hook's page is a plugin that installs by its entry point, works and conforms."""

from __future__ import annotations

import logging
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import gradhomog
from gradhomog.experiments.execution.executors.base import make_executor
from gradhomog.registry import Registry, installed
from gradhomog.testing import CheckReport, check_domain, check_homogenizer, check_learner
from tests.docs import pages


def source(hook: str) -> tuple[str, str]:
    """Name (from the first line) and text of the module on a hook's page."""
    text = pages.blocks(pages.text(f"guide/hooks/{hook}.md"), "python")[0]
    return text.splitlines()[0].removeprefix("# ").removesuffix(".py"), text


def install(hook: str, gradhomog_install: Any) -> str:
    """Install a page's module as its entry point declares; returns the name of the plugin."""
    module, text = source(hook)
    [written] = pages.blocks(pages.text(f"guide/hooks/{hook}.md"), "toml")
    [(group, names)] = tomllib.loads(written)["project"]["entry-points"].items()
    assert list(names.values()) == [module]
    return gradhomog_install(
        module.replace("_", "-"), text, kind=group.removeprefix("gradhomog."), plugin=next(iter(names))
    )


@pytest.mark.slow
def test_the_homogenizer_is_made_by_name_and_conforms(gradhomog_install: Any) -> None:
    name = install("gradhomog_homogenizer", gradhomog_install)
    report = check_homogenizer(name, fast=True)
    assert report.passed, str(report)
    assert not _held(report), "it could claim more"


@pytest.mark.slow
def test_the_learner_trains_by_name_and_conforms(gradhomog_install: Any) -> None:
    name = install("gradhomog_learner", gradhomog_install)
    report = check_learner(name, fast=True)
    assert report.passed, str(report)
    assert not _held(report), "it could claim more"


@pytest.mark.slow
@pytest.mark.parametrize("outputs", ["classes", "numbers"])
def test_the_learner_improves_with_training(gradhomog_install: Any, outputs: str) -> None:
    name = install("gradhomog_learner", gradhomog_install)
    domain = gradhomog.domain("functions:sinusoid") if outputs == "numbers" else None
    random = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = torch.nn.Sequential(torch.nn.Linear(1, 20), torch.nn.Tanh(), torch.nn.Linear(20, 20), torch.nn.Tanh())
        learner = gradhomog.learner(f"{name}(strength=0.1)", encoder, torch.nn.Linear(20, 2), homogenizers="pcgrad")
    batch = [_task(domain, index, random) for index in range(4)]
    outer = torch.optim.Adam(learner.parameters(), lr=1e-2)
    first = learner.step(batch, outer).losses.mean()
    for _ in range(60):
        last = learner.step(batch, outer).losses.mean()
    assert last < 0.9 * first


def _task(domain: Any, index: int, random: torch.Generator) -> gradhomog.Task:
    if domain is not None:
        import numpy as np

        return domain.sample("train", np.random.default_rng(index), ways=1, shots=10, queries=10)
    x = torch.rand(20, 1, generator=random) * 6 - 3
    y = (torch.sin(2 * x + index) > 0).long().flatten()
    x, y = x[y.argsort(stable=True)], y.sort().values
    return gradhomog.Task(x[::2], y[::2], x[1::2], y[1::2])


@pytest.mark.slow
def test_the_domain_is_made_by_name_and_conforms(gradhomog_install: Any) -> None:
    name = install("gradhomog_domain", gradhomog_install)
    for variant in ("plane", "space(spread=0.1)"):
        report = check_domain(f"{name}:{variant}", fast=True)
        assert report.passed, str(report)
    with pytest.raises(gradhomog.OptionError, match="variant"):
        gradhomog.domain(f"{name}:line")


def test_the_observer_writes_the_losses_of_every_other_step(gradhomog_install: Any, tmp_path: Path) -> None:
    name = install("gradhomog_observer", gradhomog_install)
    _, _, observer = installed().make("observers", name, {"every": 2}, {}, tmp_path)
    observer("start", {"event": "start", "step": 0})
    for step in (1, 5, 10):
        observer("step", {"event": "step", "run": "a", "step": step, "losses": [1.5, 2.0 * step]})
    assert (tmp_path / "losses.csv").read_text() == "1,1.5,2.0\n10,1.5,20.0\n"


def test_the_executor_computes_the_last_run_first(gradhomog_install: Any, tmp_path: Path) -> None:
    name = install("gradhomog_executor", gradhomog_install)
    assert list(make_executor(name, 4, tmp_path)([lambda: "first", lambda: "last"])) == ["last", "first"]  # type: ignore[list-item]


def test_the_wrapper_logs_what_is_made(caplog: pytest.LogCaptureFixture) -> None:
    name, text = source("gradhomog_make")
    module = ModuleType(name)
    exec(compile(text, name, "exec"), vars(module))
    registry = Registry()
    registry.manager.register(module)
    with caplog.at_level(logging.INFO, "gradhomog_clock"):
        gradhomog.pipeline("static(weights=[1, 3])", registry=registry)
    [message] = caplog.messages
    assert re.fullmatch(r"Static\(weights\) took [\d.]+ ms", message)


def _held(report: CheckReport) -> list[str]:
    return [result.check for result in report if result.outcome == "held"]
