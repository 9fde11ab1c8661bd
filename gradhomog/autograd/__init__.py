"""Homogenized backward passes for any PyTorch loop with several losses and shared parameters.

The public calls are `backward` and `loss`, `accumulated` (in `accumulation`) and `task_features` (in `inputs`). A step:

1. `begin_step` of `loss_step`: validates losses (`inputs`) and `StepOptions`, and finds the leaves of each loss
   (`loss_graph`). Its result, a `LossStep`, is the one record of losses and options.
2. `compute_step` of `backward`: creates the `derivatives` of the losses, whose `backward_passes` run on demand, and the
   source of the rows, `row_source` for one process or `rows_over_ranks` for several, which makes the `Step`.
   `Pipeline.compute` of `gradhomog.step.pipelines` computes the direction from it, once, or once for each group of
   parameters (`per`). The rows are computed on first use; in `lockstep` their inner products are computed without them.
3. `ComputedStep.write` of `backward`: adds the result to `.grad`, then assigns the states.
"""
