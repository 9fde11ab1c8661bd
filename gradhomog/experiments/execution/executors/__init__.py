"""Executors, which compute runs: on this machine, on a cluster of Dask or Ray, as jobs of Slurm, or on all ranks."""
