"""`MAML(..., adapt="head.*")`: row_i = ∇_{θ,φ} L_Q(θ, φ_i^K(θ, φ)), φ the head; in training and at
meta-test.

Args:
    encoder, head, homogenizers, loss: see `Learner`.
    adapt: glob pattern, or several, over the parameters that the inner loop changes: more than the head, or part of
        it.
    inner, inner_lr, inner_steps, test_steps, first_order: see `MAML`.
    engine, compile, autocast, norm, recompute: see `Execution`. With `recompute` the support set is
        encoded in every step.

The encoder is trained by the query loss and, through the head's inner steps, by the support features; `first_order`
omits the latter. If no parameter of the encoder is adapted, the support set is encoded once for all steps: the cost per
task is about that of one MAML step for any K, and dropout draws one mask for all steps.

Source: Raghu et al. 2020, arXiv 1909.09157, section 4. Deviation: none; NIL, classification at meta-test by the
cosine to support features, is not implemented.

>>> import torch
>>> from gradhomog import TaskBatch
>>> _ = torch.manual_seed(0)
>>> learner = anil(torch.nn.Linear(2, 4), torch.nn.Linear(4, 2), inner_lr=0.1)
>>> x, y = torch.randn(3, 4, 2), torch.tensor([0, 1, 0, 1]).repeat(3, 1)
>>> sorted(learner.rows(TaskBatch(x, y, x, y)).jacobian)
['encoder.bias', 'encoder.weight', 'head.bias', 'head.weight']
"""

from functools import partial

from gradhomog import LearnerSpec, hookimpl
from gradhomog_adapters.maml import MAML

anil = partial(MAML, adapt="head.*")
anil.__doc__ = __doc__


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=anil,
        summary="MAML whose inner loop changes the head only",
        reference="Raghu et al. 2020, arXiv 1909.09157",
        traits={"exact_rows"},
    )
