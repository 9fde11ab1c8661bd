"""Rotations of features: immutable values, which one step of the objective replaces by other values."""
