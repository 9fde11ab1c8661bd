"""Homogenized backward passes for any PyTorch loop with several losses and shared parameters.

Each public call has a module: `backward`, `loss`, `accumulated` (in `accumulation`), `task_features`. A step then is:

1. Validation: `checks` for options; `inputs` for losses, parameters and features; `parameter_groups` for `per`.
2. The leaves of each loss: `find_leaves` of `batch`, by `reachability` and `custom_functions`. `select_losses` keeps
   the tasks that homogenizers choose.
3. Rows: `differentiate` of `batch` returns `derivatives`, whose passes (`backward_pass`) run on demand. `lazy` is the
   Jacobian of them: one pass per task, or a single one if only a weighted mean is read. `kernel_traces` are for
   homogenizers that read tangent kernels.
4. The step: `compute_step` of `apply`, or of several ranks `compute_across_ranks` of `distributed.dispatch`. Both call
   `by_group`, which calls the pipeline once, or once for each group of parameters.
5. Output: `write` of `apply` adds the result to `.grad`, then assigns the states.
"""
