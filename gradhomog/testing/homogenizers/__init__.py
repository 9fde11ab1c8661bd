"""Checks of homogenizers."""
