"""Homogenized backward passes for any PyTorch loop with several losses and shared parameters."""
