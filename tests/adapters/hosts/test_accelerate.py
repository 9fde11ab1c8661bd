"""`gradhomog.loss` in a loop of Accelerate: "none" is training with the sum of the losses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradhomog

from .measures import parameters

accelerate = pytest.importorskip("accelerate", reason="needs the extra `transformers`")

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecations within Accelerate


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    """Accelerate keeps its state for the process, so that a second Accelerator would ignore its options."""
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()
    yield
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()


def losses_of(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    first, second = net(x).square().mean(0)
    return {"first": first, "second": 100 * second}


def train(pipe: gradhomog.Pipeline | None, resume: Any = None, save: Any = None, **options: Any) -> Tensor:
    torch.manual_seed(0)
    net = nn.Linear(3, 2).double()
    accelerator = accelerate.Accelerator(cpu=True, **options)
    data = torch.utils.data.DataLoader(torch.randn(3 * 8, 3, dtype=torch.float64), batch_size=4)
    net, optimizer, data = accelerator.prepare(net, torch.optim.Adam(net.parameters(), lr=0.1), data)
    if pipe is not None:
        accelerator.register_for_checkpointing(pipe)
    if resume is not None:
        accelerator.load_state(resume)
    for x in data:
        with accelerator.accumulate(net):
            losses = losses_of(net, x)
            if pipe is None:
                total = sum(losses.values())
            else:
                total = gradhomog.loss(losses, pipe, parameters=net, reduction="sum")
            accelerator.backward(total)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    if save is not None:
        accelerator.save_state(save)
    return parameters(net)


@pytest.mark.parametrize("batches", [1, 2])
def test_without_homogenizers_training_is_that_of_the_sum(batches: int) -> None:
    plain = train(None, gradient_accumulation_steps=batches)
    found = train(gradhomog.pipeline("none"), gradient_accumulation_steps=batches)
    torch.testing.assert_close(found, plain, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(train(gradhomog.pipeline("static(weights=[3, 1])")), train(None))


def test_accelerate_saves_and_loads_the_state_of_a_pipeline(tmp_path: Path) -> None:
    saved = gradhomog.pipeline("uw")
    train(saved, save=str(tmp_path))
    loaded = gradhomog.pipeline("uw")
    first, second = train(saved, resume=str(tmp_path)), train(loaded, resume=str(tmp_path))
    assert loaded.steps == saved.steps == 12
    assert torch.equal(second, first)
