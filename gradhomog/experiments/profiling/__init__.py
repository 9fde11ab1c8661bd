"""What homogenizers cost: a step with each of them, and kernels beside the forms of their peers.

Times mean little on a machine that does other things; ratios of times that were taken in turn, in one run, do.
"""
