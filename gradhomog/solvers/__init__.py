"""Solvers of small N×N programs that methods share: float64, scale-invariant, batched, twice differentiable.

Every function takes Gramians `[..., tasks, tasks]` of any floating dtype and returns a `Solution`: float64 weights
`[..., tasks]`, and a flag for convergence.
"""
