"""Steps within a compiled function: the function is compiled, the library is not, and gradients are the same."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config
import torch.compiler.config as compiler_config
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

import gradhomog

from .compiled_models import Net, batches

pytestmark = [
    pytest.mark.slow,  # compilation
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the compiler's own imports
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),  # Dynamo reads it of all inputs
]


@pytest.fixture(autouse=True)
def _without_donated_buffers() -> Iterator[None]:
    with functorch_config.patch(donated_buffer=True), compiler_config.patch(cache_key_tag=""):
        gradhomog.disable_donated_buffers()
        yield
    torch.compiler.reset()


def with_backward(net: Net, pipe: gradhomog.Pipeline, x: Tensor) -> None:
    gradhomog.backward(net(x), pipe, parameters=net.encoder)


def with_loss(net: Net, pipe: gradhomog.Pipeline, x: Tensor) -> None:
    gradhomog.loss(net(x), pipe, parameters=net.encoder).backward()


def with_accumulated(net: Net, pipe: gradhomog.Pipeline, x: Tensor) -> None:
    with gradhomog.accumulated(pipe, parameters=net.encoder) as several:
        several.add(net(x[:3]))
        several.add(net(x[3:]))


def with_combine(net: Net, pipe: gradhomog.Pipeline, x: Tensor) -> None:
    rows = torch.stack([x.square().mean(0), x.mean(0), -x.mean(0) + 1])
    net.encoder[0].bias.grad = torch.cat(
        [pipe.combine(rows, losses=rows.square().sum(1)), torch.zeros(3, dtype=x.dtype)]
    )


STEPS: list[Callable[..., None]] = [with_backward, with_loss, with_accumulated, with_combine]


@pytest.mark.parametrize("text", ["uw", "upgrad"])
@pytest.mark.parametrize("step", STEPS)
def test_gradients_are_those_of_the_function_without_compilation(step: Callable[..., None], text: str) -> None:
    def gradients(function: Callable[..., None]) -> list[Any]:
        net, pipe, found = Net(), gradhomog.pipeline(text), []
        for x in batches():
            net.zero_grad()
            function(net, pipe, x)
            found += [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]
        return found

    counter = CompileCounterWithBackend("aot_eager")
    found = gradients(torch.compile(step, backend=counter))
    torch.testing.assert_close(found, gradients(step), rtol=1e-9, atol=1e-12)
    # The compiled graphs contain the network's operations, none of the library, such as the solver's or its checks.
    names = {str(node.target) for graph in counter.graphs for node in graph.graph.nodes if node.op == "call_function"}
    assert names
    assert not any("linalg" in name or "isfinite" in name for name in names)
