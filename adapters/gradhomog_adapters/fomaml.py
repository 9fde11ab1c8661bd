"""FOMAML: first-order MAML as a preset."""

import inspect
from typing import Any

from gradhomog import LearnerSpec, hookimpl
from gradhomog_adapters.maml import MAML


def fomaml(*network: Any, **options: Any) -> MAML:
    """`MAML(..., first_order=True)`: row_i = ∇L_Q at the adapted point, so no Hessian is formed.

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        inner, inner_lr, inner_steps, test_steps, adapt: the inner optimizer, its rate, its steps in training and at
            meta-test, and the parameters that it changes; see `MAML`.
        engine, compile, autocast, norm, recompute: see `Execution`. There is no graph to recompute.

    Source: Finn et al. 2017, arXiv 1703.03400, section 5.2.
    """
    return MAML(*network, first_order=True, **options)


# The options of MAML, without the one that is fixed.
SIGNATURE = inspect.signature(MAML)
OPTIONS = [parameter for name, parameter in SIGNATURE.parameters.items() if name != "first_order"]
vars(fomaml).update(__wrapped__=MAML, __signature__=SIGNATURE.replace(parameters=OPTIONS))


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=fomaml,
        summary="MAML without second derivatives: the query gradient at the adapted point",
        reference="Finn et al. 2017, arXiv 1703.03400, section 5.2",
    )
