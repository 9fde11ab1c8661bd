"""State is assigned last and all at once: a failed step changes nothing, and its repetition draws the same numbers."""

import pytest
import torch

import gradhomog
from gradhomog import ConfigError, Homogenizer, NonfiniteError, PluginRunError
from gradhomog.step.step import make_step
from tests.step.members import ROWS, Counter


def test_states_are_assigned_together_after_every_update_has_returned():
    counts = []

    class Reading(Counter):
        def update(self, step):
            counts.append((first.count, second.count))
            return super().update(step)

    first, second = Reading(), Reading()
    pipe = gradhomog.pipeline([first, second])
    pipe.combine(ROWS)
    pipe.combine(ROWS)
    assert counts == [(0, 0), (0, 0), (1, 1), (1, 1)]
    assert (first.count, second.count, pipe.steps) == (2, 2, 2)


def test_the_state_of_a_wrapped_homogenizer_is_assigned_with_its_wrappers():
    class Wrapper(Homogenizer):
        state_names = ("inner", "own")

        def __init__(self):
            self.inner, self.own = Counter(), 0.0

        def update(self, step):
            return {"inner": self.inner.update(step.view(self.inner)), "own": 1.0}

    wrapper = Wrapper()
    pipe = gradhomog.pipeline([wrapper])
    pipe.combine(ROWS)
    assert pipe.state_dict() == {
        "steps": 1,
        "named": False,
        "last_losses": {},
        "0:Wrapper": {"inner": {"count": 1}, "own": 1.0},
    }
    fresh = gradhomog.pipeline([Wrapper()])
    fresh.load_state_dict(pipe.state_dict())
    assert fresh.state_dict() == pipe.state_dict()


def test_a_pending_step_changes_nothing_until_it_is_committed():
    pipe = gradhomog.pipeline([Counter(), "gradnorm"])
    before = str(pipe.state_dict())
    pending = pipe.compute(make_step(ROWS, [1.0, 2.0]))
    assert str(pipe.state_dict()) == before
    pending.commit()
    assert pipe.steps == 1
    assert str(pipe.state_dict()) != before


# -- random numbers --------------------------------------------------------------------------------------------------


class Drawing(Homogenizer):
    """Records the numbers that each stage draws."""

    def __init__(self, seed=0, fails=False):
        self.seed, self.fails, self.drawn = seed, fails, []

    def mix(self, step):
        self.drawn.append(float(torch.rand((), generator=step.generator)))
        if self.fails:
            raise ValueError("failed")
        return torch.ones(step.tasks)

    def update(self, step):
        self.drawn.append(float(torch.rand((), generator=step.generator)))
        return {}


def test_random_numbers_are_a_function_of_seed_and_step():
    draws = {}
    for seed in (0, 1, 2**40, -5):
        drawing = Drawing(seed)
        pipe = gradhomog.pipeline([drawing])
        for _ in range(3):
            pipe.combine(ROWS)
        assert drawing.drawn[::2] == drawing.drawn[1::2]  # every read of the generator starts the same sequence
        draws[seed] = drawing.drawn[::2]
        again = Drawing(seed)
        other = gradhomog.pipeline([again])
        other.load_state_dict({"steps": 2, "named": None, "last_losses": {}, "0:Drawing": {}})
        other.combine(ROWS)
        assert again.drawn[0] == draws[seed][2]
    numbers = [number for found in draws.values() for number in found]
    assert len(set(numbers)) == len(numbers)


def test_the_repetition_of_a_failed_step_draws_the_same_random_numbers():
    drawing = Drawing()
    pipe = gradhomog.pipeline([drawing])
    pipe.combine(ROWS)
    drawing.drawn.clear()
    bad = ROWS.clone()
    bad[0, 0] = torch.nan
    with pytest.raises(NonfiniteError):
        pipe.combine(bad)
    drawing.fails = True
    with pytest.raises(PluginRunError):
        pipe.combine(ROWS)
    drawing.fails = False
    pipe.combine(ROWS)
    assert len(set(drawing.drawn)) == 1


def test_the_generator_of_begin_is_a_function_of_seed_step_slot_and_part():
    class Masks(Homogenizer):
        def __init__(self):
            self.drawn = []

        def begin(self, key, part, generator):
            self.drawn.append(float(torch.rand((), generator=generator)))

    def draw(pipe, masks):
        masks.drawn.clear()
        for slot in range(2):
            for part in ("support", "query"):
                pipe.begin(gradhomog.TaskKey(slot), part)
        return list(masks.drawn)

    masks = Masks()
    pipe = gradhomog.pipeline([masks])
    first = draw(pipe, masks)
    assert draw(pipe, masks) == first
    pipe.combine(ROWS)
    numbers = [*first, *draw(pipe, masks)]
    assert len(set(numbers)) == 8


def test_two_threads_may_use_one_pipeline():
    # Regression: db_mtl raised an error with the advice to report it to its authors.
    import threading

    pipe = gradhomog.pipeline("db_mtl + gradnorm + rlw + moco")
    rows = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    errors = []

    def work():
        try:
            for _ in range(20):
                assert torch.isfinite(pipe.combine(rows, losses=[1.0, 2.0, 3.0])).all()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_the_state_of_another_pipeline_raises():
    with pytest.raises(
        ConfigError, match=r"the pipeline 'pcgrad' must have the keys \['0:pcgrad'.*; got .*'0:gradnorm'"
    ):
        gradhomog.pipeline("pcgrad").load_state_dict(gradhomog.pipeline("gradnorm").state_dict())
    with pytest.raises(ConfigError, match=r"must have the keys \['first_losses', 'log_weights'\]; got \[\]"):
        gradhomog.pipeline("gradnorm").load_state_dict({"steps": 0, "named": None, "last_losses": {}, "0:gradnorm": {}})
    with pytest.raises(
        ConfigError, match=r"the pipeline 'gradnorm' must have the keys .*'steps'"
    ):  # without the number of steps
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
