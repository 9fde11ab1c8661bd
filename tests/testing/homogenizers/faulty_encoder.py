"""Faulty in the encoder: no rotations, redrawn masks, hooks and values left behind, rows that are no derivatives."""

from __future__ import annotations

import math

import torch

from tests.testing.homogenizers.faults import fails
from tests.testing.homogenizers.good import Drop, Turn


class Undo:
    """A handle made by hand."""

    def __init__(self, remove):
        self.remove = remove


@fails("orthogonal", "after 1 updates.*determinant of task 0's matrix is −1: a reflection")
class Reflects(Turn):
    """A Householder matrix is orthogonal too."""

    def matrix(self, angle, features):
        matrix = super().matrix(angle, features)
        matrix[:, 1] *= -1
        return matrix


@fails("orthogonal", "determinant of task 0's matrix is −1")
class Negates(Turn):
    """−1 is a rotation of six features, and none of five."""

    def matrix(self, angle, features):
        return -super().matrix(angle, features)


@fails("orthogonal", "after 2000 updates.*RᵀR of task 0 is off the identity")
class Drifts(Turn):
    """Steps along the tangent, each of which makes the matrix a little longer."""

    def matrix(self, angle, features):
        length = math.sqrt(1 + 1e-12 * self.steps)
        return super().matrix(angle, features) * length

    state_names = ("angles", "steps")

    def __init__(self):
        super().__init__()
        self.steps = 0

    def update(self, step):
        return {**super().update(step), "steps": self.steps + 1}


@fails("orthogonal", "`transform` is not linear in the features")
class Shifts(Turn):
    """A rotation about another point than zero."""

    def transform(self, features, keys):
        return super().transform(features - 1, keys) + 1


@fails("constant_between_begins", "run again on support inputs: not the same")
class RedrawsMasks(Drop):
    """A new mask for every pass: the inner steps are those of many functions."""

    def drop(self, module, inputs, output):
        self.masks = {}
        return super().drop(module, inputs, output)


@fails("constant_between_begins", "run again on query inputs: not the same")
class HoldsSupportOnly(Drop):
    """Right for inner steps, wrong for learners that run the query inputs twice."""

    def begin(self, key, part, generator):
        super().begin(key, part, generator)
        self.part = part

    def drop(self, module, inputs, output):
        if self.part == "query":
            self.masks = {}
        return super().drop(module, inputs, output)


@fails("detached_completely", "left 1 hook on the encoder after the handles from `attach` were removed")
@fails("removed_at_meta_test", "left 1 hook on the encoder after the handles from `attach` were removed")
class LeavesHook(Drop):
    """Two hooks, and the handle of one."""

    def attach(self, encoder):
        encoder[0].register_forward_hook(lambda module, inputs, output: output + 1)
        return super().attach(encoder)


@fails("detached_completely", "after the handles were removed, .*: hooks, parameters or forwards are left")
@fails("removed_at_meta_test", "hooks, parameters or forwards are left")
class LeavesForward(Drop):
    """Restores the class's forward as an attribute of the object, where there was none."""

    def attach(self, encoder):
        forward = encoder.forward

        def remove():
            encoder.forward = forward

        encoder.forward = lambda inputs: forward(inputs) * 2
        return [Undo(remove)]


@fails("removed_at_meta_test", "hooks, parameters or forwards are left")
class PatchesClass(Drop):
    """Changes what every convolution of the process computes."""

    def attach(self, encoder):
        kind = type("Louder", (type(encoder[0]),), {"forward": lambda layer, x: 2 * super(kind, layer).forward(x)})
        encoder[0].__class__ = kind
        return super().attach(encoder)


@fails("removed_at_meta_test", "hooks, parameters or forwards are left")
class LeavesHookOnParameter(Drop):
    """Masks gradients of a parameter, for ever."""

    def attach(self, encoder):
        encoder[0].weight.register_hook(lambda gradient: 0.5 * gradient)
        return super().attach(encoder)


@fails("detached_completely", "the encoder's `0.weight` after the handles were removed: not the same")
@fails("removed_at_meta_test", "`0.weight`.*not the same")
class LeavesWeights(Drop):
    """Prunes the weights themselves, which no handle brings back."""

    def attach(self, encoder):
        encoder[0].weight.data.mul_(0.99)
        return super().attach(encoder)


@fails("removed_at_meta_test", "after a task of .* failed, the encoder is not as before")
class UndoneByLastTask(Drop):
    """The encoder is restored when the last task has ended, which one that fails never does."""

    def attach(self, encoder):
        encoder[0].requires_grad_(False)
        return [Undo(lambda: encoder[0].requires_grad_(self.part == "query"))]

    def begin(self, key, part, generator):
        super().begin(key, part, generator)
        self.part = part


@fails("rows_are_derivatives", "is not the derivative of the loss: along a random direction")
class TurnsForwardOnly(Turn):
    """The rotation is a constant that is added: gradients pass it as if it were not there."""

    def transform(self, features, keys):
        return features + (super().transform(features, keys) - features).detach()


@fails("rows_are_derivatives", "is not the derivative of the loss: along a random direction")
class CutsStatistics(Turn):
    """Divides by the features' size, and cuts its derivative."""

    def transform(self, features, keys):
        return super().transform(features, keys) / features.detach().norm()


@fails("rows_are_derivatives", "is not the derivative of the loss")
class DropsBackwards(Drop):
    """Masks what flows back with another draw than what flows forward."""

    def drop(self, module, inputs, output):
        kept = super().drop(module, inputs, output)
        return kept if kept is None else kept.detach() + (output - output.detach()) * self.draw(output.shape)


@fails("detached_completely", "after `attach` raised at hook 1, the encoder is not as before")
class PatchesBeforeHook(Drop):
    """Changes the encoder itself before it registers its hook, which may raise."""

    def attach(self, encoder):
        dropped = encoder[0]
        encoder[0] = torch.nn.Sequential(dropped)
        handle = super().attach(encoder)[0]

        def remove():
            encoder[0] = dropped
            handle.remove()

        return [Undo(remove)]
