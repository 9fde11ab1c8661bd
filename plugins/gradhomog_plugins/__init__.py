"""The first-party homogenizers, one module each, registered by entry points as third-party ones are."""

EQUIVARIANT = frozenset({"permutation_equivariant", "scale_equivariant", "rotation_equivariant"})
"""Traits of a method whose direction commutes with permutations, a common factor, and rotations of the rows."""
