"""The execution of a comparison, from its plan to its runs.

`comparison` plans the runs, and stops them after Ctrl-C. An executor starts processes: `Executor`, the base class, is
in `worker`, and implementations are in `executors`. In a process, `Job` of `worker` computes one run: it calls
`Trainer` of `gradhomog.experiments.training.trainer`, which trains, tests and writes checkpoints.
"""
