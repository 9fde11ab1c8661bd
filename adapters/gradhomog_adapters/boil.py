"""`MAML(..., adapt="encoder.*")`: row_i = ∇_{θ,φ} L_Q(θ_i^K(θ, φ), φ), θ the encoder, φ the head.

Args:
    encoder, head, homogenizers, loss: see `Learner`.
    inner_lr, inner_steps: 0.5 and one step, as published; longer loops need smaller rates.
    adapt: glob pattern, or several, over the parameters that the inner loop changes, for example part of the encoder.
    inner, test_steps, first_order: see `MAML`.
    engine, compile, autocast, norm, recompute: see `Execution`.

Cost: as MAML.

Source: Oh et al. 2021, arXiv 2008.08882, section 3, equation 3. Deviation: none.

>>> import torch
>>> from gradhomog import TaskBatch
>>> _ = torch.manual_seed(0)
>>> learner = boil(torch.nn.Linear(2, 4), torch.nn.Linear(4, 2))
>>> x, y = torch.randn(3, 4, 2), torch.tensor([0, 1, 0, 1]).repeat(3, 1)
>>> learner.rows(TaskBatch(x, y, x, y)).losses.shape
torch.Size([3])
"""

from functools import partial

from gradhomog import LearnerSpec, hookimpl
from gradhomog_adapters.maml import MAML

boil = partial(MAML, adapt="encoder.*", inner_lr=0.5, inner_steps=1)
boil.__doc__ = __doc__


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=boil,
        summary="MAML whose inner loop changes the encoder only",
        reference="Oh et al. 2021, arXiv 2008.08882",
        traits={"exact_rows"},
    )
