"""Faulty state: forgotten, shared, or fit for one batch only."""

from __future__ import annotations

import collections
import copy

import torch

from tests.testing.homogenizers.faults import fails
from tests.testing.homogenizers.good import Balance, Clip, Drop, Lag


@fails("resumes_from_state_dict", "after it was saved and loaded in mid-training: not the same")
class ForgetsShare(Drop):
    """`carried` names the generator, and not what it is used with."""

    carried = ("generator",)


@fails("resumes_from_state_dict", "after it was saved and loaded in mid-training: not the same")
class ForgetsGenerator(Drop):
    """`carried` names what was learnt, and not where the next masks come from."""

    carried = ("share",)


@fails("resumes_from_state_dict", "holds more than tensors, numbers, texts, lists and dicts")
class SavesObjects(Lag):
    """A deque, which `torch.load` refuses to make."""

    def update(self, evidence):
        for key, loss in zip(evidence.by("domain"), evidence.losses.tolist(), strict=True):
            self.losses.setdefault(key, collections.deque(maxlen=self.size)).append(loss)


@fails("resumes_from_state_dict", "the state after it was saved, who saved it goes on writing to it")
class SavesItself(Lag):
    """Hands out what it goes on writing to, so that the best state of a run is always the last."""

    def state_dict(self):
        return {"losses": self.losses}


@fails("resumes_from_state_dict", "the state after it was loaded, who loaded it goes on writing to it")
class LoadsItself(Lag):
    """Goes on writing to what it was given."""

    def load_state_dict(self, state):
        self.losses = state["losses"]


@fails("resumes_from_pickle", "[Cc]an't (get|pickle) local object")
class HoldsFunction(Clip):
    """A function made in the constructor cannot go to another process."""

    def __init__(self):
        self.middle = lambda norms: norms.median()


@fails("resumes_from_pickle", "after it was pickled in mid-training: not the same")
class PicklesOptionsOnly(Lag):
    """Keeps its pickle small, at the cost of all it has learnt."""

    def __getstate__(self):
        return {"size": self.size, "losses": {}}


@fails("resumes_from_copy", "after it was copied in mid-training: not the same")
class CopiesShallowly(Lag):
    """A copy that learns with the original."""

    def __deepcopy__(self, memo):
        made = copy.copy(self)
        made.losses = copy.copy(self.losses)
        return made

    def update(self, evidence):
        for key, loss in zip(evidence.by("domain"), evidence.losses.tolist(), strict=True):
            self.losses.setdefault(key, []).append(loss)
            del self.losses[key][: -self.size]


@fails("stateful", "`state_dict` is empty", claims="stateful")
class CarriesNothing(Clip):
    """Claims to be stateful."""


@fails("momentum", "give that row whatever the step before showed", claims="momentum")
class ForgetsRows(Lag):
    """Carries losses over steps, but no rows."""


@fails("nonfinite_policy", "raised in `mix`.*must match the size of tensor")
class AsManyAsAtFirst(Balance):
    """A usual norm for each task of the first batch: one that is left out leaves a hole."""

    def norms(self, evidence):
        now = evidence.norms()
        if not self.usual:
            self.usual = {"first": torch.zeros_like(now)}
        return self.usual["first"] + now

    def update(self, evidence):
        self.usual["first"] = self.norms(evidence)


@fails("nonfinite_policy", "raised in `mix`.*out of range|IndexError")
class LooksUpSlots(Balance):
    """Takes a task's slot in the batch for its place among the rows."""

    def weights(self, norms):
        return (
            norms.new_tensor([float(norms[slot]) for slot in self.slots]) * len(norms) / norms.sum().clamp(min=1e-300)
        )

    def mix(self, evidence):
        self.slots = [key.slot for key in evidence.keys]
        return super().mix(evidence)
