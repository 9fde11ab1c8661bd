"""Gradients of compiled, checkpointed and functional models are those of the plain model, or an error is raised."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch._dynamo.config as dynamo_config
import torch._functorch.config as functorch_config
import torch.compiler.config as compiler_config
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gradhomog
from gradhomog import OptionError

from .compiled_models import ENCODERS, ENTRY_POINTS, Net, batches, compiled, prepared, trained

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "compile.md"
ONE_PASS, N_PASSES = "uw", "upgrad"
COMPILED = {kind for kind in ENCODERS if "compile" in kind or "dynamic" in kind}

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the compiler's own imports
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),  # Dynamo reads it of all inputs
]


def table() -> dict[tuple[str, str], str]:
    """The cells of the page, by kind of model and entry point."""
    lines = re.findall(r"^\| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    header, *rows = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    return {(row[0], name): cell for row in rows for name, cell in zip(header[1:], row[1:], strict=True)}


TABLE = table()


def cells(*names: str) -> list[Any]:
    """Parameters of the tests: kind, entry point, cell. Compilation is slow."""
    return [
        pytest.param(kind, name, cell, marks=[pytest.mark.slow] if kind in COMPILED else [])
        for (kind, name), cell in TABLE.items()
        if not names or name in names
    ]


@pytest.fixture(autouse=True, scope="module")
def without_donated_buffers() -> Iterator[None]:
    """As at the beginning of a program; restored for the tests that follow."""
    with (
        functorch_config.patch(donated_buffer=True), compiler_config.patch(cache_key_tag=""),
        # The forward of all kinds has one code object, which Dynamo compiles for eight models at most by default.
        dynamo_config.patch(recompile_limit=100),
    ):  # fmt: skip
        gradhomog.disable_donated_buffers()
        yield
    prepared.cache_clear()
    torch.compiler.reset()


@functools.cache
def expected(name: str, text: str) -> list[Tensor]:
    return ENTRY_POINTS[name]("uncompiled", text)


def test_the_page_has_a_cell_for_every_kind_and_entry_point() -> None:
    assert set(TABLE) == {(kind, name) for kind in ENCODERS if kind != "uncompiled" for name in ENTRY_POINTS}
    assert set(TABLE.values()) == {"yes", "one pass", "error"}


@pytest.mark.parametrize(("kind", "name", "cell"), cells())
def test_a_cell_of_the_page_holds(kind: str, name: str, cell: str) -> None:
    works = {"yes": [ONE_PASS, N_PASSES], "one pass": [ONE_PASS], "error": []}[cell]
    for text in (ONE_PASS, N_PASSES):
        if text in works:
            torch.testing.assert_close(ENTRY_POINTS[name](kind, text), expected(name, text), rtol=1e-9, atol=1e-12)
        else:  # rows for `combine` come from PyTorch, and so do their errors
            with pytest.raises(RuntimeError if name == "`pipe.combine`" else OptionError):
                ENTRY_POINTS[name](kind, text)


@pytest.mark.parametrize(("kind", "name", "cell"), [c for c in cells("`backward`") if c.values[2] == "yes"])
def test_autocast_gives_the_gradients_of_the_plain_model_under_autocast(kind: str, name: str, cell: str) -> None:
    found, plain, exact = (
        torch.cat([gradient.flatten().double() for gradient in trained("backward", one, N_PASSES, autocast)])
        for one, autocast in ((kind, True), ("uncompiled", True), ("uncompiled", False))
    )
    assert (found - plain).norm() <= 0.02 * plain.norm()  # five units of bfloat16's precision, 2⁻⁸
    assert (plain - exact).norm() > 1e-4 * exact.norm()  # autocast has an effect


@pytest.mark.parametrize("text", [ONE_PASS, N_PASSES])
def test_every_pass_through_a_checkpoint_drops_the_same_activations(text: str) -> None:
    gradients = []
    for kind in ("uncompiled", "checkpoint"):
        net, x = Net(), batches()[0]
        net.encoder.append(nn.Dropout(0.5))
        with torch.random.fork_rng():
            torch.manual_seed(1)
            z = ENCODERS[kind](net.encoder)(x)
            assert 0 < int((z == 0).sum()) < z.numel()
            gradhomog.backward(net.losses(z, x), gradhomog.pipeline(text), parameters=net.encoder)
        gradients.append([parameter.grad for parameter in net.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.slow
def test_compiled_losses_without_parameters_raise_instead_of_sharing_the_heads() -> None:
    _, forward = prepared("compiled losses")
    with pytest.raises(OptionError, match=r"`parameters` is required.*several outputs of one torch\.compile'd"):
        gradhomog.backward(forward(batches()[0])[1], gradhomog.pipeline("upgrad"))


@pytest.mark.slow
def test_a_compiled_encoder_requires_no_parameters() -> None:
    parameters, forward = prepared("compiled encoder")
    step = gradhomog.backward(forward(batches()[0])[1], gradhomog.pipeline("upgrad"))
    assert sorted(d.shape for d in step.direction.values()) == sorted(p.shape for p in parameters[:4])


@pytest.mark.slow
def test_a_graph_of_a_compiled_function_has_no_second_derivatives() -> None:
    parameters, forward = prepared("compiled encoder")
    with pytest.raises(OptionError, match=r"second derivatives.*original module"):
        gradhomog.backward(
            forward(batches()[0])[1], gradhomog.pipeline("upgrad"), parameters=parameters[:4], create_graph=True
        )


@pytest.mark.slow
def test_a_graph_of_dynamic_shapes_raises_with_donated_buffers_and_changes_nothing() -> None:
    # PyTorch compiles the backward of dynamic shapes with the forward, for one pass; the second batch size is dynamic.
    net, pipe = Net(), gradhomog.pipeline("upgrad")
    with functorch_config.patch(donated_buffer=True):
        encoder = compiled(net.encoder, dynamic=True)
        x = batches()[0]
        with pytest.raises(OptionError, match=r"several backward passes.*gradhomog\.disable_donated_buffers\(\)"):
            gradhomog.backward(net.losses(encoder(x), x), pipe, parameters=net.encoder)
    assert all(parameter.grad is None for parameter in net.parameters())
    assert pipe.steps == 0


def test_a_partly_reentrant_encoder_raises_although_its_other_layers_have_gradients() -> None:
    # Without the error the parameters within the checkpoint get no gradient.
    first, second = nn.Linear(5, 6).double(), nn.Linear(6, 2).double()
    hidden = ENCODERS["reentrant checkpoint"](first)(batches()[0])
    losses = [second(hidden).square().mean(), second(hidden).sin().mean()]
    for options in ({}, {"features": hidden}):
        with pytest.raises(OptionError, match="use_reentrant=False"):
            gradhomog.backward(losses, gradhomog.pipeline("none"), parameters=nn.ModuleList([first, second]), **options)


def two_tasks() -> gradhomog.TaskBatch:
    x = batches()[0]
    y = torch.arange(len(x)) % 2
    return gradhomog.TaskBatch(*(torch.stack(pair) for pair in ((x, 2 * x), (y, 1 - y), (x, -x), (y, y))))


@pytest.mark.parametrize("name", ["protonet", "anil"])
def test_learners_that_do_not_adapt_the_encoder_take_checkpoints(name: str) -> None:
    jacobians = []
    for kind in ("uncompiled", "checkpoint"):
        net, batch = Net(), two_tasks()
        learner = gradhomog.learner(name, ENCODERS[kind](net.encoder), net.heads[0], engine="loop")
        jacobians.append(list(learner.rows(batch).jacobian.values()))
        learner.evaluate(batch)
    torch.testing.assert_close(*jacobians)
    assert any(bool((row != 0).any()) for row in jacobians[0])


@pytest.mark.parametrize("engine", ["auto", "loop"])  # PyTorch itself raises for vmap
@pytest.mark.parametrize("name", ["maml", "protonet", "anil"])
def test_learners_reject_a_reentrant_checkpoint_of_data_which_leaves_no_node_in_the_graph(
    name: str, engine: str
) -> None:
    class OfData(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 6).double()

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, checkpoint(self.layer, x, use_reentrant=True))

    for encoder in (OfData(), nn.Sequential(OfData(), nn.Linear(6, 6).double())):
        learner = gradhomog.learner(name, encoder, nn.Linear(6, 2).double(), engine=engine)
        with pytest.raises(OptionError, match="use_reentrant=True"):
            learner.rows(two_tasks())


@pytest.mark.parametrize("engine", ["auto", "vmap", "loop"])
def test_checkpoints_that_a_learner_rejects_raise_an_error_with_the_conditions(engine: str) -> None:
    encoder = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6)).double()
    learner = gradhomog.learner("protonet", ENCODERS["checkpoint"](encoder), nn.Linear(6, 2).double(), engine=engine)
    with pytest.raises(OptionError, match="engine='loop' in networks without buffers"):
        learner.rows(two_tasks())
