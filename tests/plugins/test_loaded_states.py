"""Saved states of every method: a value of another type anywhere in it is an error, and nothing has changed."""

import pytest
import torch

import gradhomog
from gradhomog.errors import ConfigError
from tests.plugins.rows import BUILT_IN, normal
from tests.plugins.test_rows_at_their_ends import FOUR_LOSSES, one_step

WITH_OPTIONS = [
    "cr_mogm(method='gradvac')", "rotate(parameterization='geodesic')", "sdmgrad(solver='sgd')",
    "tracked(method='gradvac(beta=0.5)')",
]  # fmt: skip
OF_OTHER_TYPES = {
    dict: (None, "text", 3, [1.0]), list: (None, "text", 3, {"a": 1.0}), str: (None, 3, [1.0]),
    float: (None, "text", [1.0], {}, torch.zeros(2), float("nan")), torch.Tensor: (None, "text", 1.0, [1.0], {}),
}  # fmt: skip
OF_OTHER_TYPES[int] = (*OF_OTHER_TYPES[float], 0.5j)


def places(value, path=()):
    """Yield the path of each value in a nested state, itself included, and the value."""
    yield path, value
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(part, (*path, key))


def replaced(state, path, value):
    if not path:
        return value
    copy = state.copy()
    copy[path[0]] = replaced(state[path[0]], path[1:], value)
    return copy


@pytest.mark.parametrize("method", [*BUILT_IN, *WITH_OPTIONS])
def test_a_state_with_a_value_of_another_type_is_not_loaded(method):
    saved = gradhomog.pipeline(method)
    for _ in range(3):
        one_step(saved, normal(4, 9), FOUR_LOSSES)
    state, pipe = saved.state_dict(), gradhomog.pipeline(method)
    before = repr(pipe.state_dict())
    for path, value in places(state):
        kept = (bool, type(None)) if path == ("named",) else ()
        kept = (type(None),) if path[:1] == ("last_losses",) and path[1:] else kept
        for wrong in OF_OTHER_TYPES.get(type(value), (3, "text", [1.0])):
            if isinstance(wrong, kept) or (wrong == [1.0] and path[-1:] == ("multiplied",)):
                continue
            with pytest.raises(ConfigError) as caught:
                pipe.load_state_dict(replaced(state, path, wrong))
            named = path[1:2] if path[1:2] != ("inner",) else path[2:3]  # `inner` is the state of another method
            named = named if path[:1] != ("last_losses",) else path[:1]
            assert all(f"`{name}`" in str(caught.value) for name in named), (path, wrong, str(caught.value))
            assert repr(pipe.state_dict()) == before, (path, wrong)
    pipe.load_state_dict(state)
    assert repr(pipe.state_dict()) == repr(state)


@pytest.mark.parametrize(
    "state", [None, 3, "text", [("steps", 0)], {}, {"steps": -1, "named": None, "last_losses": {}, "0:dwa": {}}]
)
def test_a_state_that_is_none_of_this_pipeline_is_not_loaded(state):
    pipe = gradhomog.pipeline("dwa")
    with pytest.raises(ConfigError, match="must"):
        pipe.load_state_dict(state)
    assert pipe.steps == 0


def test_without_types_the_type_of_the_attribute_is_compared():
    class Counts(gradhomog.Homogenizer):
        state_names = ("counts", "free")

        def __init__(self):
            self.counts, self.free = {}, None

    one = Counts()
    one.load_state_dict({"counts": {"a": "text"}, "free": 3})
    with pytest.raises(ConfigError, match=r"Counts: `counts` must be a table by name; got 'text'"):
        one.load_state_dict({"counts": "text", "free": 4})
    assert (one.counts, one.free) == ({"a": "text"}, 3)
