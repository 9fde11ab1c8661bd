"""Profile training steps: the time and memory that each homogenizer adds, as ratios to the plain learner.

Times depend on what else runs on the machine. Ratios of times that were taken in turn, in one run, do so far less.
"""
