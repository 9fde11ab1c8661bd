"""A homogenized loss may be a term of a sum, whose other terms depend on the same activations."""

import pytest
import torch
from torch import Tensor, nn

import gradhomog


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.Tanh()).double()
        self.heads = nn.ModuleList(nn.Linear(8, 1) for _ in range(3)).double()
        self.x = torch.randn(6, 4, dtype=torch.float64)

    def forward(self) -> tuple[Tensor, list[Tensor]]:
        z = self.encoder(self.x)
        return z, [(head(z) - task).square().mean() for task, head in enumerate(self.heads)]

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters() if parameter.grad is not None]


def penalty(z: Tensor) -> Tensor:
    return 0.1 * z.abs().mean() + z.square().mean()


def expected(text: str, level: str) -> list[Tensor]:
    """The gradients of two backward passes through two graphs."""
    net = Net()
    z, losses = net()
    gradhomog.backward(losses, gradhomog.pipeline(text), parameters=net.encoder, features=z, level=level)
    penalty(net()[0]).backward()
    return net.gradients()


@pytest.mark.parametrize("level", ["parameters", "features"])
@pytest.mark.parametrize("text", ["none", "uw", "pcgrad", "graddrop", "upgrad"])
def test_gradients_are_added_to_those_of_a_penalty_on_an_activation(text: str, level: str) -> None:
    net, pipe = Net(), gradhomog.pipeline(text)
    z, losses = net()
    total = gradhomog.loss(losses, pipe, parameters=net.encoder, features=z, level=level) + penalty(z)
    total.backward()
    torch.testing.assert_close(net.gradients(), expected(text, level))
    assert pipe.steps == 1


def test_a_graph_that_backward_keeps_can_be_used_again() -> None:
    net = Net()
    z, losses = net()
    gradhomog.loss(losses, gradhomog.pipeline("pcgrad"), parameters=net.encoder).backward(retain_graph=True)
    penalty(z).backward()
    torch.testing.assert_close(net.gradients(), expected("pcgrad", "parameters"))


def test_a_graph_that_nothing_else_uses_is_freed() -> None:
    net = Net()
    z, losses = net()
    penalty_of_weights = net.encoder[0].weight.square().sum()  # depends on a leaf, not on an activation
    (gradhomog.loss(losses, gradhomog.pipeline("pcgrad"), parameters=net.encoder) + penalty_of_weights).backward()
    with pytest.raises(RuntimeError, match="second time"):
        z.sum().backward()
