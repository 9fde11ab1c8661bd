"""Profiling of training steps: the time and memory that each homogenizer adds, as ratios to the plain learner.

Times depend on the load of the machine. Ratios of times that were measured alternately, in one run, depend on it far
less.
"""
