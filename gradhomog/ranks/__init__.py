"""Homogenize rows that are distributed over the ranks of a process group."""
