"""Faulty state: forgotten, shared, or fit for one batch only."""

from __future__ import annotations

import collections
import copy

import torch

from tests.testing.homogenizers.faults import fails
from tests.testing.homogenizers.good import Balance, Clip, Drop, Lag


@fails("resumes_from_state_dict", "after it was saved and loaded in mid-training: not the same")
class SavesHalf(Drop):
    """A state_dict without the state."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@fails("resumes_from_state_dict", "holds more than tensors, numbers, texts, lists and dicts")
class SavesObjects(Lag):
    """A deque, which `torch.load` refuses to make."""

    def update(self, step):
        losses = super().update(step)["losses"]
        return {"losses": {key: collections.deque(values) for key, values in losses.items()}}


@fails("state_owns_its_memory", "after the state was saved, training the original writes to it")
class SavesItself(Lag):
    """Returns the dict that it continues to write to, so that the best state of a run is always the last."""

    def update(self, step):
        self.losses.update(super().update(step)["losses"])
        return {}

    def state_dict(self):
        return {"losses": self.losses}


@fails("state_owns_its_memory", "after the state was loaded, training the one that loaded it writes to it")
class LoadsItself(SavesItself):
    """Continues to write to the state that it loaded."""

    def state_dict(self):
        return Lag.state_dict(self)

    def load_state_dict(self, state):
        self.losses = state["losses"]


@fails("resumes_from_pickle", "[Cc]an't (get|pickle) local object")
class HoldsFunction(Clip):
    """A function made in the constructor cannot be sent to another process."""

    def __init__(self):
        self.middle = lambda norms: norms.median()


@fails("resumes_from_pickle", "after it was pickled in mid-training: not the same")
class PicklesOptionsOnly(Lag):
    """A small pickle, without the state."""

    def __getstate__(self):
        return {"size": self.size, "losses": {}}


@fails("resumes_from_copy", "after it was copied in mid-training: not the same")
class CopiesShallowly(Lag):
    """A copy that learns with the original."""

    def __deepcopy__(self, memo):
        made = copy.copy(self)
        made.losses = copy.copy(self.losses)
        return made

    def update(self, step):
        for key, loss in zip(step.by("domain"), step.losses.tolist(), strict=True):
            self.losses.setdefault(key, []).append(loss)
            del self.losses[key][: -self.size]
        return {}


@fails("stateful", "`state_names` is empty", claims="stateful")
class CarriesNothing(Clip):
    """Claims to be stateful."""


@fails("momentum", "give that row, independently of the step before", claims="momentum")
class ForgetsRows(Lag):
    """Carries losses over steps, but no rows."""


@fails("nonfinite_policy", "raised in `mix`.*must match the size of tensor")
class AsManyAsAtFirst(Balance):
    """One norm for each task of the first batch, in one tensor: a dropped task changes its size."""

    def norms(self, step):
        return self.usual.get("first", 0) + step.norms()

    def update(self, step):
        return {"usual": {"first": self.norms(step)}}


@fails("nonfinite_policy", "raised in `mix`.*out of range|IndexError")
class LooksUpSlots(Balance):
    """Uses a task's slot in the batch as its place among the rows."""

    def mix(self, step):
        return super().mix(step)[[key.slot for key in step.keys]]


@fails("state_owns_its_memory", "the state changes when the caller's rows, losses or features are overwritten")
class KeepsTheCallersRows(Lag):
    """A view of the last losses, instead of a copy."""

    state_names = ("losses", "last")
    last = 0.0

    def update(self, step):
        return {**super().update(step), "last": step.losses[0]}


@fails("order_within_a_key", r"the state\['0:LastOfADomain'\]\['usual'\]\['a'\] after 1 steps in which .*: off by")
class LastOfADomain(Balance):
    """Of two tasks of one domain, the last one silently wins."""

    def update(self, step):
        return {"usual": {**self.usual, **dict(zip(step.by("domain"), self.norms(step).tolist(), strict=True))}}


@fails("order_within_a_key", "the direction after 1 steps in which the two tasks of domain a are swapped: off by")
class FirstOfADomain(Lag):
    """The first task of a domain counts twice."""

    def weights(self, losses, usual):
        weights = super().weights(losses, usual)
        weights = torch.cat([2 * weights[:1], weights[1:]])
        return len(weights) * weights / weights.sum()
