"""Inductor reuses saved tensors in the backward pass: N passes are right, or an error is raised before a wrong one."""

import shutil
from pathlib import Path

import pytest
import torch
import torch._functorch.config as functorch_config
import torch.compiler.config as compiler_config
from torch import Tensor, nn

import gradhomog
from gradhomog import OptionError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="inductor requires the C++ compiler g++"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the compiler's own imports
]


def test_a_second_pass_is_right_or_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three states of PyTorch's settings in one test, because each compilation takes seconds."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # without code of earlier runs
    torch.manual_seed(0)
    # Equal sizes, so that the backward pass computes gradients in the memory of saved activations.
    layers = [nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(16, 16)).double()
    x = torch.randn(16, 16, dtype=torch.float64)
    encoder = torch.compile(net)

    def gradient(text: str, compiled: bool) -> Tensor:
        net.zero_grad()
        z = encoder(x) if compiled else net(x)
        losses = [z.square().mean(), (z - 1).square().mean(), z.sin().mean()]
        gradhomog.backward(losses, gradhomog.pipeline(text), parameters=net)
        return torch.cat([parameter.grad.flatten() for parameter in net.parameters()])

    with functorch_config.patch(donated_buffer=True), compiler_config.patch(cache_key_tag=""):
        torch.compiler.reset()
        torch.testing.assert_close(gradient("none", True), gradient("none", False))
        with pytest.raises(OptionError, match=r"compiled for one.*gradhomog\.disable_donated_buffers\(\)"):
            gradient("upgrad", True)

        functorch_config.donated_buffer = False  # as PyTorch's error advises: the second gradient would be wrong
        with pytest.raises(OptionError, match=r"overwrote.*gradhomog\.disable_donated_buffers\(\)"):
            gradient("upgrad", True)
        torch.compiler.reset()  # compiles again, and finds the previous code in the cache
        with pytest.raises(OptionError, match="overwrote"):
            gradient("upgrad", True)

        gradhomog.disable_donated_buffers()
        torch.testing.assert_close(gradient("upgrad", True), gradient("upgrad", False))
    torch.compiler.reset()
