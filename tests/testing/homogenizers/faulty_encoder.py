"""Homogenizers with faults in the encoder: no rotation, redrawn masks, remaining hooks, wrong derivatives."""

from __future__ import annotations

import math

import torch

from tests.testing.faults import fails
from tests.testing.homogenizers.good import Drop, Rotate


class Handle:
    """A handle with a custom `remove`."""

    def __init__(self, remove):
        self.remove = remove


@fails("orthogonal", "matrix of task 0 has determinant −1")
class Negates(Rotate):
    """−1 is a rotation in six dimensions, but not in five."""

    def matrix(self, angle, features):
        return -super().matrix(angle, features)


@fails("orthogonal", "after 2000 updates.*RᵀR of task 0 differs from the identity")
class Drifts(Rotate):
    """The norm of the matrix grows slightly with every update, as with steps along the tangent."""

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
class Shifts(Rotate):
    """A rotation about another point than the origin."""

    def transform(self, features, keys):
        return super().transform(features - 1, keys) + 1


@fails("constant_between_begins", "in a second run on query inputs: not exactly equal")
class KeepsSupportMasksOnly(Drop):
    """Keeps masks for support inputs, but draws new masks for every pass of the queries."""

    def begin(self, key, part, generator):
        super().begin(key, part, generator)
        self.part = part

    def drop(self, module, inputs, output):
        if self.part == "query":
            self.masks = {}
        return super().drop(module, inputs, output)


@fails("detached_completely", "1 hook remained on the encoder after the handles were removed")
@fails("removed_at_meta_test", "1 hook remained on the encoder after the handles were removed")
class LeavesHook(Drop):
    """Registers two hooks and returns one handle."""

    def attach(self, encoder):
        encoder[0].register_forward_hook(lambda module, inputs, output: output + 1)
        return super().attach(encoder)


@fails("detached_completely", "after the handles were removed, .*: hooks, parameters or `forward` are left")
@fails("removed_at_meta_test", "hooks, parameters or `forward` are left")
class LeavesForward(Drop):
    """Restores `forward` as an attribute of the instance instead of deleting the attribute."""

    def attach(self, encoder):
        forward = encoder.forward

        def remove():
            encoder.forward = forward

        encoder.forward = lambda inputs: forward(inputs) * 2
        return [Handle(remove)]


@fails("removed_at_meta_test", "hooks, parameters or `forward` are left")
class PatchesClass(Drop):
    """Replaces the class of a convolution and does not restore it."""

    def attach(self, encoder):
        kind = type("Louder", (type(encoder[0]),), {"forward": lambda layer, x: 2 * super(kind, layer).forward(x)})
        encoder[0].__class__ = kind
        return super().attach(encoder)


@fails("removed_at_meta_test", "hooks, parameters or `forward` are left")
class LeavesHookOnParameter(Drop):
    """Registers a hook on a parameter and does not remove it."""

    def attach(self, encoder):
        encoder[0].weight.register_hook(lambda gradient: 0.5 * gradient)
        return super().attach(encoder)


@fails("detached_completely", "the encoder's `0.weight` after the handles were removed: not exactly equal")
@fails("removed_at_meta_test", "`0.weight`.*not exactly equal")
class ScalesWeights(Drop):
    """Changes weights in place and does not restore them."""

    def attach(self, encoder):
        encoder[0].weight.data.mul_(0.99)
        return super().attach(encoder)


@fails("removed_at_meta_test", "after a task of .* failed, the encoder has changed")
class RestoredByLastTask(Drop):
    """Restores the encoder only after a query part, which a failed task may not reach."""

    def attach(self, encoder):
        encoder[0].requires_grad_(False)
        return [Handle(lambda: encoder[0].requires_grad_(self.part == "query"))]

    def begin(self, key, part, generator):
        super().begin(key, part, generator)
        self.part = part


@fails("rows_are_derivatives", "is not the derivative of the loss: along a random direction")
class RotatesForwardOnly(Rotate):
    """Rotates in the forward pass only: the gradient is not rotated."""

    def transform(self, features, keys):
        return features + (super().transform(features, keys) - features).detach()


@fails("rows_are_derivatives", "is not the derivative of the loss")
class OtherMaskBackward(Drop):
    """Uses another mask in the backward pass than in the forward pass."""

    def drop(self, module, inputs, output):
        kept = super().drop(module, inputs, output)
        return kept if kept is None else kept.detach() + (output - output.detach()) * self.draw(output.shape)


@fails("detached_completely", "after `attach` raised at hook 1, the encoder has changed")
class PatchesBeforeHook(Drop):
    """Changes the encoder before it registers its hook, which may raise."""

    def attach(self, encoder):
        dropped = encoder[0]
        encoder[0] = torch.nn.Sequential(dropped)
        handle = super().attach(encoder)[0]

        def remove():
            encoder[0] = dropped
            handle.remove()

        return [Handle(remove)]
