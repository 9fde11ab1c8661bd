"""Rotations of features: immutable values; a step on the objective returns a new one."""
