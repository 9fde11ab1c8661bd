"""The pretend device refuses what a GPU refuses, counts what a GPU waits for, and the tests on a device pass on it."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this version of PyTorch registers no devices from Python",
)

SELF_TEST = """
import torch
from tests import pretend_device

pretend_device.register()
cpu = torch.arange(6.0).view(2, 3)
with pretend_device.use() as found:
    x = cpu.to("pretend")
    assert x.device == torch.device("pretend:0") and torch.equal(x.cpu(), cpu)
    assert torch.equal((x[0] @ x.T).cpu(), cpu[0] @ cpu.T)  # `@` squeezes in place

    operations = {
        "add": lambda: x + cpu,
        "cat": lambda: torch.cat([x, cpu]),
        "stack of a number": lambda: torch.stack([x.sum(), cpu.sum()]),
        "matrix product": lambda: x @ cpu.T,
        "generator": lambda: torch.rand(2, generator=torch.Generator(), device="pretend"),
    }
    for name, operation in operations.items():
        try:
            operation()
        except RuntimeError as error:
            assert "pretend" in str(error), error
        else:
            raise AssertionError(f"{name} mixes devices, and was not refused")
    assert (x * cpu.sum()).device.type == (torch.tensor(2.0) + x).device.type == "pretend"  # numbers on the CPU

    waiting = {
        "item": lambda: x.sum().item(),
        "bool": lambda: bool((x > 0).all()),
        "list": lambda: x.tolist(),
        "copy to the CPU": lambda: x.cpu(),
        "copy to the device": lambda: cpu.to("pretend"),
        "data": lambda: torch.tensor([1.0], device="pretend"),
        "mask": lambda: x[x > 0],
        "list as index": lambda: x[[0, 1]],
        "index on the CPU": lambda: x[torch.tensor([0])],
        "equal": lambda: torch.equal(x, x),
        "nonzero": lambda: x.nonzero(),
        "error code": lambda: torch.linalg.solve(x[:, :2] + torch.eye(2, device="pretend"), x),
    }
    for name, operation in waiting.items():
        found.clear()
        operation()
        assert len(found) == 1, (name, found)
    found.clear()
    cpu.to("pretend", non_blocking=True), x.sum(), x[:, 1:], x * 2.0, torch.zeros(3, device="pretend")
    assert not found, found
"""


def run(*arguments: str) -> None:
    """Run in a separate process, because PyTorch cannot unregister a device."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stdout + done.stderr


def test_operations_on_two_devices_are_refused_and_synchronizations_are_counted():
    run("-c", SELF_TEST)


@pytest.mark.parametrize(
    ("marks", "names"),
    [
        ("not slow", ["test_device", "test_host_synchronizations"]),
        *(
            pytest.param("", [name], marks=pytest.mark.slow)
            for name in ("test_device", "test_host_synchronizations", "learners/test_learners_on_a_device")
        ),
    ],
    ids=str,
)
def test_tests_on_a_device_pass_on_the_pretend_device(marks, names):
    files = [str(Path(__file__).parent / f"{name}.py") for name in names]
    options = ["-q", "-m", marks, "-p", "no:cacheprovider"]
    # Every operation takes 0.1 ms more on the pretend device, so learners of many operations compute rows only.
    slow = "imaml or meta_transfer or sharp or alfa or baseline"
    options += ["-k", f"not vmap and not recompute and not (scores and ({slow}))"]
    run("-m", "pytest", *options, "--device", "pretend", *files)
