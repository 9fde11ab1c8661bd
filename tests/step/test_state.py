"""The state of a pipeline: saving, loading, errors for other states; global generators are unchanged."""

from __future__ import annotations

import copy

import pytest
import torch

import gradhomog
from gradhomog import ConfigError
from tests.step.members import ROWS


@pytest.mark.parametrize("text", ["pcgrad", "gradnorm", "static + pcgrad(seed=3) + gradnorm(alpha=0.5)", "none"])
def test_a_pipeline_with_a_loaded_state_continues_with_identical_bits(text, tmp_path):
    generator = torch.Generator().manual_seed(0)

    def step(pipe):
        rows = torch.randn(5, 7, generator=generator)
        return pipe.combine(rows, losses=torch.rand(5, generator=generator) + 0.1)

    pipe = gradhomog.pipeline(text)
    for _ in range(3):
        step(pipe)
    torch.save(pipe.state_dict(), tmp_path / "state.pt")
    fresh = gradhomog.pipeline(text)
    fresh.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    copied = copy.deepcopy(pipe)
    for _ in range(3):
        random = generator.get_state()
        expected = step(pipe)
        for other in (fresh, copied):
            generator.set_state(random)
            assert torch.equal(step(other), expected)


def test_the_state_of_another_pipeline_raises():
    with pytest.raises(ConfigError, match="saved state must be of the same pipeline"):
        gradhomog.pipeline("pcgrad").load_state_dict(gradhomog.pipeline("gradnorm").state_dict())
    with pytest.raises(ConfigError, match=r"must have the keys \['first_losses', 'log_weights'\]; got \[\]"):
        gradhomog.pipeline("gradnorm").load_state_dict({"steps": 0, "named": None, "0:gradnorm": {}})
    with pytest.raises(ConfigError, match="saved state must be of the same pipeline"):  # without the number of steps
        gradhomog.pipeline("gradnorm").load_state_dict({"0:gradnorm": {}})


def test_an_invalid_state_changes_nothing():
    pipe = gradhomog.pipeline("moco + gradnorm")
    pipe.combine(ROWS, losses=[1.0, 2.0])
    before = str(pipe.state_dict())
    other = gradhomog.pipeline("moco + gradnorm").state_dict()
    del other["1:gradnorm"]["log_weights"]
    with pytest.raises(ConfigError):
        pipe.load_state_dict(other)
    assert str(pipe.state_dict()) == before
