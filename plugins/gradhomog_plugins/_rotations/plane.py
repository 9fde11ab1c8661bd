"""The rotation in one plane that maps v to u, in closed form."""

import math
from typing import Self

import torch
from torch import Tensor

from gradhomog_plugins._rotations.base import Rotation

# Largest length of the sum of opposite unit vectors in float64; opposite vectors span no plane.
OPPOSITE = 1e-9


class Plane(Rotation):
    """R = S_h S_b with half-turns S_x = 2 x xᵀ − I: a rotation by 2 ∠(b, h) in the plane of b and h.

    With b = v and h halfway from v to u it is the smallest rotation with R v = u. b and h are unit vectors `[2, m]`
    that follow v and the halfway direction slowly. Both start at v, so R starts at the identity. If the directions are
    noise, b and h stay close to each other, and R stays close to the identity. If they are constant, R converges to
    Rᵀ u = v. If u = −v, the plane is undefined and R does not change.

    b moves by β ≤ lr/6 and h by η = lr/2 − 2β, in radians; h is then pulled back until 2 ∠(b, h) ≤ max_angle, by at
    most β more. A half-turn about an axis that moves by x turns by 2x, so that R turns by 2β + 2(η + β) = lr at most.

    Cost: O(m) for a step and for a vector. State: two vectors.
    """

    @classmethod
    def identity(cls, v: Tensor) -> Self:
        return cls(v[:1].repeat(2, 1))

    @property
    def angle(self) -> float:
        return 2 * angle_between(*self.tensor)

    def apply(self, x: Tensor, tensor: Tensor, transposed: bool) -> Tensor:
        first, second = tensor.flip(0) if transposed else tensor
        return half_turn(half_turn(x, first), second)

    def propose(self, u: Tensor, v: Tensor, lr: float, max_angle: float) -> Self:
        """As `step`, for one pair `[1, m]`."""
        (u, v), (base, half) = (u[0], v[0]), self.tensor.to(u.device)
        middle = u + v
        length = float(middle.norm())
        if length < OPPOSITE:
            return self
        reach = min(lr / 6, angle_between(base, v))
        base, half = move_towards(base, v, reach), move_towards(half, middle / length, lr / 2 - 2 * reach)
        return type(self)(torch.stack([base, move_towards(base, half, max_angle / 2)]))


def half_turn(x: Tensor, axis: Tensor) -> Tensor:
    """Return S x = 2 ⟨axis, x⟩ axis − x for each row of x."""
    return 2 * (x @ axis)[..., None] * axis - x


def angle_between(one: Tensor, other: Tensor) -> float:
    """Return the angle between two unit vectors in [0, π], exact for small angles."""
    return 2 * math.atan2(float((one - other).norm()), float((one + other).norm()))


def move_towards(start: Tensor, goal: Tensor, reach: float) -> Tensor:
    """Return the unit vector `reach` radians from `start` on the great circle to `goal`, or `goal` if it is nearer.

    Opposite vectors have no unique great circle: `start` is returned.
    """
    angle = angle_between(start, goal)
    if angle <= reach:
        return goal
    across = goal - (goal @ start) * start
    sine = float(across.norm())
    if sine < OPPOSITE:
        return start
    moved = math.cos(reach) * start + (math.sin(reach) / sine) * across
    unit: Tensor = moved / moved.norm()
    return unit
