"""Homogenizers with faulty state: not saved, shared, or valid for one batch only."""

from __future__ import annotations

import collections
import copy

import torch

from tests.testing.faults import fails
from tests.testing.homogenizers.good import Balance, Clip, Drop, LossRatio


@fails("resumes_from_state_dict", "after it was saved and loaded during training: not exactly equal")
class SavesNothing(Drop):
    """An empty state_dict."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@fails("resumes_from_state_dict", "holds other objects than tensors, numbers, strings, lists and dicts")
class SavesObjects(LossRatio):
    """A deque, which `torch.load` rejects with `weights_only=True`."""

    def update(self, step):
        losses = super().update(step)["losses"]
        return {"losses": {key: collections.deque(values) for key, values in losses.items()}}


@fails("state_owns_its_memory", "after the state was saved, further training of the original writes to it")
class ReturnsLiveState(LossRatio):
    """Returns its own dict, so a saved best state changes in later steps."""

    def update(self, step):
        self.losses.update(super().update(step)["losses"])
        return {}

    def state_dict(self):
        return {"losses": self.losses}


@fails("state_owns_its_memory", "after the state was loaded, further training writes to it")
class KeepsLoadedState(ReturnsLiveState):
    """Writes to the state that it loaded."""

    def state_dict(self):
        return LossRatio.state_dict(self)

    def load_state_dict(self, state):
        self.losses = state["losses"]


@fails("resumes_from_pickle", "after it was pickled during training: not exactly equal")
class PicklesOptionsOnly(LossRatio):
    """Pickles options without state."""

    def __getstate__(self):
        return {"size": self.size, "losses": {}}


@fails("resumes_from_copy", "after a copy was trained: the copy and the original share state: not exactly equal")
class CopiesShallowly(LossRatio):
    """A copy that shares its state with the original."""

    def __deepcopy__(self, memo):
        duplicate = copy.copy(self)
        duplicate.losses = copy.copy(self.losses)
        return duplicate

    def update(self, step):
        for key, loss in zip(step.names, step.losses.tolist(), strict=True):
            self.losses.setdefault(key, []).append(loss)
            del self.losses[key][: -self.size]
        return {}


@fails("stateful", "`state_names` is empty", claims="stateful")
class ClaimsState(Clip):
    """Claims to be stateful, but has no state."""


@fails("momentum", "does not depend on earlier steps, as the trait `momentum` claims", claims="momentum")
class ClaimsMomentum(LossRatio):
    """Carries losses from step to step, but no rows."""


@fails("nonfinite_policy", "raised in `mix`.*must match the size of tensor")
class FixedTaskCount(Balance):
    """One tensor of norms by position, whose size changes if a task is dropped."""

    def norms(self, step):
        return self.average.get("first", 0) + step.norms()

    def update(self, step):
        return {"average": {"first": self.norms(step)}}


@fails("state_owns_its_memory", "the state changes when the caller's rows, losses or features are overwritten")
class KeepsViewOfLosses(LossRatio):
    """Keeps a view of the last losses instead of a copy."""

    state_names = ("losses", "last")
    last = 0.0

    def update(self, step):
        return {**super().update(step), "last": step.losses[0]}


@fails("state_by_name", r"the state\['0:LastTaskOfDomain'\]\['average'\]\['a'\] after 1 steps in which .*: off by")
class LastTaskOfDomain(Balance):
    """The last of two tasks of one domain overwrites the state of the first."""

    def update(self, step):
        return {"average": {**self.average, **dict(zip(step.names, self.norms(step).tolist(), strict=True))}}


@fails("state_by_name", r"the state\['0:StateBySlot'\]\['average'\]\['0'\] after 1 steps in which .*: off by")
class StateBySlot(Balance):
    """Keeps state under positions, which belong to other tasks in later steps."""

    def keys(self, step):
        return [key.by("slot") for key in step.keys]


@fails("state_by_name", "the direction after 1 steps in which the order of tasks named a, a, b, c changed: off by")
class FirstTaskOfDomain(LossRatio):
    """Doubles the weight of the first task."""

    def weights(self, losses, average):
        weights = super().weights(losses, average)
        weights = torch.cat([2 * weights[:1], weights[1:]])
        return len(weights) * weights / weights.sum()
