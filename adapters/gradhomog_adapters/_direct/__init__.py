"""Learners without an inner loop: what they compare, and what they compare by."""
