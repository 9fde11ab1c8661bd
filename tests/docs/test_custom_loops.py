"""Loops of users, plain and homogenized: few lines differ, and the pipeline "none" computes the plain loop."""

import difflib
import math
import re
import runpy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchopt
from torch.func import functional_call

import gradhomog
from gradhomog import Task
from gradhomog_adapters.torchopt import meta_step
from tests.docs import pages
from tests.docs.scripts import image_batches, printed

FOLDER = pages.DOCS / "examples" / "torchopt"
PAGE = pages.text("guide/torchopt.md")
OWN_PAGE = pages.text("guide/own-loop.md")
LOOPS = {"own-loop": ("plain.py", "homogenized.py"), "torchopt": ("few_shot.py", "few_shot_homogenized.py")}
"""Folder in `docs/examples` of a loop, plain and homogenized, which its page in `docs/guide` shows."""


def lines_of(folder: str) -> list[list[str]]:
    return [(pages.DOCS / "examples" / folder / name).read_text("utf-8").splitlines() for name in LOOPS[folder]]


@pytest.mark.parametrize("folder", LOOPS)
def test_five_lines_are_changed_and_others_only_indented(folder: str) -> None:
    """Counted strictly: a line that is added, one that is replaced, and one that is removed, each as one."""
    plain, homogenized = lines_of(folder)
    bare = [[line.strip() for line in lines] for lines in (plain, homogenized)]
    codes = difflib.SequenceMatcher(None, *bare, autojunk=False).get_opcodes()
    changes = [code for code in codes if code[0] != "equal"]
    assert sum(max(until - start, to - at) for _, start, until, at, to in changes) == 5
    if folder == "torchopt":
        changed = [line for _, _, _, at, to in changes for line in homogenized[at:to]]
        assert changed == [line for line in homogenized if line.endswith("  # changed")]
    else:
        assert len(plain) <= 60


def test_the_pages_show_the_plain_loop_and_the_difference() -> None:
    assert pages.blocks(OWN_PAGE, "python")[0].splitlines() == lines_of("own-loop")[0]
    shown = lines_of("own-loop"), [[line.strip() for line in lines] for lines in lines_of("torchopt")]
    for page, (plain, homogenized), names in zip((OWN_PAGE, PAGE), shown, LOOPS.values(), strict=True):
        difference = difflib.unified_diff(plain, homogenized, *names, lineterm="", n=1)
        assert pages.blocks(page, "diff")[0].splitlines() == list(difference)


def trained(source: str, *arguments: int) -> dict[str, torch.Tensor]:
    names: dict[str, Any] = {"__name__": "script"}
    exec(source, names)
    torch.manual_seed(0)
    net = names["network"](*arguments).double()
    names["train"](net, image_batches())
    return net.state_dict()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("folder", "arguments", "outer", "tolerance"),
    [
        pytest.param("own-loop", (), "Adam", 1e-9, marks=pytest.mark.slow),
        ("torchopt", (4,), "Adam", 1e-9),
        ("torchopt", (4,), "SGD", 1e-12),
    ],
)
def test_without_a_homogenizer_the_homogenized_loop_is_the_plain_one_in_float64(
    folder: str, arguments: tuple[int, ...], outer: str, tolerance: float
) -> None:
    """Adam magnifies the rounding of derivatives that are 0, those of the biases before a BatchNorm, to some 1e-10."""
    sources = ["\n".join(lines).replace("torch.optim.Adam(", f"torch.optim.{outer}(") for lines in lines_of(folder)]
    same = trained(sources[1].replace('"pcgrad"', '"none"'), *arguments)
    plain, other = (trained(source, *arguments) for source in sources)
    for name, value in plain.items():
        torch.testing.assert_close(same[name], value, rtol=tolerance, atol=tolerance)
    assert not torch.allclose(plain["0.weight"], other["0.weight"], rtol=1e-6)


UNIFORM = math.log(5)  # the loss of a uniform prediction over five characters
LEARNING = {
    "own-loop/plain.py": (r"loss on an unseen script after 3 inner steps: (\d\.\d{3})\n", 0.9 * UNIFORM),
    "own-loop/homogenized.py": (r"loss on an unseen script after 3 inner steps: (\d\.\d{3})\n", 0.9 * UNIFORM),
    "torchopt/few_shot_homogenized.py": (r"Test Loss: (\d\.\d{3})\n", 1.5),
    "torchopt/functional.py": (r"query loss on unseen functions: (\S+) before, (\S+) after\n", 0.8),
    "torchopt/implicit.py": (r"query loss on unseen functions: (\S+) before, (\S+) after\n", 0.8),
}
"""Output of each script, and the bound of its loss, or of the ratio of the losses after and before training."""


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_a_script_runs_and_learns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    pattern, bound = LEARNING[name]
    found = re.fullmatch(pattern, printed(pages.DOCS / "examples" / name, capsys))
    assert found
    *before, after = map(float, found.groups())
    assert after < bound * (before[0] if before else 1)


def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / name), run_name="script")


def function_batches(steps: int) -> list[list[Task]]:
    random = np.random.default_rng(0)
    domains = [gradhomog.domain(f"functions:{name}") for name in ("sinusoid", "line", "quadratic")]
    tasks = [[d.sample("train", random, ways=1, shots=5, queries=7) for d in domains] for _ in range(steps)]
    names = ("support_x", "support_y", "query_x", "query_y")
    return [[Task(*(getattr(task, name).double() for name in names)) for task in batch] for batch in tasks]


def test_the_functional_api_without_a_homogenizer_is_torchopts_loop_in_float64() -> None:
    names, batches = script("functional.py"), function_batches(3)
    torch.manual_seed(0)
    net = names["network"]().double()
    found = names["train"](net, batches, gradhomog.pipeline("none"))
    other = names["train"](net, batches, gradhomog.pipeline("pcgrad"))

    params = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    outer = torchopt.Adam(list(params.values()), lr=3e-3)  # the loop of TorchOpt's users: one loss, the mean
    for batch in batches:
        outer.zero_grad()
        losses = []
        for task in batch:
            adapted, inner = params, torchopt.FuncOptimizer(torchopt.adam(lr=0.02, eps_root=1e-8))
            for _ in range(3):
                adapted = inner.step(F.mse_loss(functional_call(net, adapted, task.support_x), task.support_y), adapted)
            losses.append(F.mse_loss(functional_call(net, adapted, task.query_x), task.query_y))
        torch.stack(losses).mean().backward()
        outer.step()
    for name, value in params.items():
        torch.testing.assert_close(found[name].detach(), value.detach(), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(found["0.weight"], other["0.weight"], rtol=1e-6)


def closed_form(prior: dict[str, torch.Tensor], task: Task, features: Any) -> torch.Tensor:
    """Query loss of w = (XᵀX/n + Λ)⁻¹ (Xᵀy/n + Λφ), with Λ = diag exp(log λ)."""
    x, y, strength = features(task.support_x), task.support_y[:, 0], prior["log_strength"].exp()
    weights = torch.linalg.solve(x.T @ x / len(x) + strength.diag(), x.T @ y / len(x) + strength * prior["mean"])
    return 0.5 * (features(task.query_x) @ weights - task.query_y[:, 0]).square().mean()


def test_implicit_rows_equal_those_of_the_closed_form_and_those_of_meta_step() -> None:
    names, generator = script("implicit.py"), torch.Generator().manual_seed(1)
    prior = {
        name: torch.randn(5, generator=generator, dtype=torch.float64).requires_grad_()
        for name in ("mean", "log_strength")
    }
    (tasks,) = function_batches(1)
    rows, losses = names["gradients"](prior, tasks)
    for slot, task in enumerate(tasks):
        loss = closed_form(prior, task, names["features"])
        expected = torch.autograd.grad(loss, list(prior.values()))
        torch.testing.assert_close(losses[slot], loss.detach(), rtol=1e-6, atol=1e-8)
        for row, exact in zip(rows.values(), expected, strict=True):
            torch.testing.assert_close(row[slot], exact, rtol=1e-6, atol=1e-6)

    # `meta_step` forms the same rows from the query losses of a prior that a module holds.
    direction, net = gradhomog.pipeline("pcgrad").combine(rows, losses=losses), torch.nn.Module()
    for name, value in prior.items():
        net.register_parameter(name, torch.nn.Parameter(value.detach().clone()))
    with meta_step(net, gradhomog.pipeline("pcgrad")) as step:
        for task in tasks:
            with step.task():
                step.add(names["query_loss"](dict(net.named_parameters()), task))
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, direction[name], rtol=1e-10, atol=1e-10)


def test_every_fault_on_the_page_has_an_input() -> None:
    section = PAGE.split("## Faults of TorchOpt 0.7.3")[1]
    rows = re.findall(r"^\| ([^|]+) \|[^|]*\|[^|]*\|[^|]+\|$", section, re.MULTILINE)
    assert {name for name in rows if name != "fault"} == set(script("faults.py")["FAULTS"])
