"""Homogenized backward passes for any PyTorch loop with several losses and parameters that they share."""
