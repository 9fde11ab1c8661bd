"""Directions and gradients on the device of `pytest --device` are those of the CPU in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradhomog
from gradhomog import TaskBatch


def assert_close(found: Tensor, expected: Tensor, device: str) -> None:
    """Compare float32 on a device with float64 on the CPU, relative to the largest entry."""
    assert found.device.type == torch.device(device).type
    assert float((found.cpu().double() - expected).abs().max()) <= 1e-3 * float(expected.abs().max())


def rows() -> Tensor:
    return torch.randn(4, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.2


def acts_on_rows(name: str) -> bool:
    """False for homogenizers that act in the network, or that read more than losses and rows."""
    pipe = gradhomog.pipeline(name)
    needs = {need for member in pipe.members for need in member.needs}
    return not needs & {"features", "kernel_traces", "targets"} and not pipe.stages.attaching


@pytest.mark.parametrize("name", [name for name in gradhomog.available() if acts_on_rows(name)])
def test_combine_returns_the_direction_of_every_homogenizer(name: str, device: str) -> None:
    losses = torch.tensor([1.0, 0.5, 2.0, 0.1], dtype=torch.float64)
    found = gradhomog.pipeline(name).combine(rows().float().to(device), losses=losses.float().to(device))
    assert_close(found, gradhomog.pipeline(name).combine(rows(), losses=losses), device)


def trained(dtype: torch.dtype, device: str, text: str, with_loss: bool) -> Tensor:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double().to(device, dtype)
    x = torch.randn(32, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    losses = [*(net(x) - x[:, :3]).square().mean(0)]
    pipe = gradhomog.pipeline(text)
    if with_loss:
        gradhomog.loss(losses, pipe, parameters=net).backward()
    else:
        gradhomog.backward(losses, pipe, parameters=net)
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters() if parameter.grad is not None])


@pytest.mark.parametrize("text", ["none", "uw", "upgrad", "graddrop"])
@pytest.mark.parametrize("with_loss", [False, True])
def test_backward_and_loss_write_gradients_on_the_device(text: str, with_loss: bool, device: str) -> None:
    expected = trained(torch.float64, "cpu", text, with_loss)
    assert_close(trained(torch.float32, device, text, with_loss), expected, device)


@pytest.mark.parametrize("text", ["none", "upgrad", "rotate"])
def test_a_step_of_a_learner_changes_parameters_on_the_device(text: str, device: str) -> None:
    def stepped(dtype: torch.dtype, device: str) -> Any:
        torch.manual_seed(0)
        encoder, head = (nn.Linear(5, 6).double().to(device, dtype), nn.Linear(6, 2).double().to(device, dtype))
        learner = gradhomog.learner("maml", encoder, head, homogenizers=text, inner_steps=2)
        x = torch.randn(3, 8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device, dtype)
        y = (torch.arange(8, device=device) % 2).expand(3, 8)
        learner.step(TaskBatch(x, y, x.flip(0), y), torch.optim.SGD(learner.parameters(), lr=0.1))
        return torch.cat([parameter.detach().flatten() for parameter in (*encoder.parameters(), *head.parameters())])

    assert_close(stepped(torch.float32, device), stepped(torch.float64, "cpu"), device)
