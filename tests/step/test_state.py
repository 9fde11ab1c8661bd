"""The state of a pipeline: errors for other states."""

import pytest

import gradhomog
from gradhomog import ConfigError
from tests.step.members import ROWS


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
