"""`gradhomog.loss` in a loop of Accelerate: "none" is training with the sum of the losses."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import gradhomog

for _name in ("transformers", "accelerate"):
    pytest.importorskip(_name, reason="needs the extra `transformers`")

import accelerate  # noqa: E402

from .transformers_on_ranks import accelerated  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecations within Accelerate


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    """Accelerate keeps its state for the process, so that a second Accelerator would ignore its options."""
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()
    yield
    accelerate.state.AcceleratorState._reset_state(True)
    accelerate.state.GradientState._reset_state()


@pytest.mark.parametrize("batches", [1, 2])
def test_without_homogenizers_training_is_that_of_the_sum(batches: int) -> None:
    plain, found = accelerated(None, batches=batches), accelerated("none", batches=batches)
    torch.testing.assert_close(found, plain, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(accelerated("static(weights=[3, 1])", batches=batches), plain)


def test_accelerate_saves_and_loads_the_state_of_a_pipeline(tmp_path: Path) -> None:
    saved, loaded = gradhomog.pipeline("uw"), gradhomog.pipeline("uw")
    accelerated(saved, save=str(tmp_path))
    first, second = accelerated(saved, resume=str(tmp_path)), accelerated(loaded, resume=str(tmp_path))
    assert loaded.steps == saved.steps == 24
    assert torch.equal(second, first)
