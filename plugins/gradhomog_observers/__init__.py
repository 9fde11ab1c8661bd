"""Observers that are included in gradhomog: they export the metrics of runs to other tools."""
