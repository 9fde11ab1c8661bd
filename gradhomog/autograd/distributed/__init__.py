"""Steps of `backward`, `loss` and `accumulated` across ranks; `gradhomog.ranks` has the exchange and the Jacobians.

`dispatch` validates the options and chooses one of four kinds of steps:

* `batch`: every rank has all tasks on its part of the batch. `mean_losses` computes the weights of the ranks, and
  `lazy_exchange` the rows, one backward pass and one message at a time; `features` has the rows of `level="features"`.
* `tasks`: every rank has some of the tasks, and sends their rows.
* `local`: every rank homogenizes its own rows; directions are averaged.
* `fully_sharded`: hooks of `fully_shard` exchange the rows in the backward passes of `fully_sharded_passes`.

Before the exchange, `agreement` lists what must be the same on all ranks. After it, `rows` takes the step, which is the
same on every rank; only `local` calls the step of one process, `gradhomog.autograd.apply`.
"""
