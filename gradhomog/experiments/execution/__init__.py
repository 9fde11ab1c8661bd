"""Runs of a comparison: `comparison` plans them, `executors` start processes, and `worker` trains one run in each."""
