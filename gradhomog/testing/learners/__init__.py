"""Checks of learners."""
