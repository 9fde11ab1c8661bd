"""Checks of domains."""
