"""Figures of a comparison; each function takes records or a summary and returns a figure, or None without data.

Matplotlib (the extra `plot`) is imported when the first figure is drawn. Its global state is not changed.
"""
