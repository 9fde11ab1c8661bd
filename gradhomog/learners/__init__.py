"""Learners and domains: their interfaces, tasks, scores, and the rows of a meta-step."""
