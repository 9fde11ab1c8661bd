"""Statistics of a comparison: `summary` computes the rows of its table, `statistics` their intervals and tests."""
