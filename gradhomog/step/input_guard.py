"""The debug check of a pipeline: a stage must not modify its inputs in place."""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog.errors import PluginRunError
from gradhomog.rows import Jacobian
from gradhomog.step.member import Member
from gradhomog.step.step_inputs import StepInputs


class InputGuard:
    """Copies of a stage's inputs, compared after the stage; also detects writes through `.data` and NumPy."""

    def __init__(self, inputs: StepInputs, rows: Jacobian) -> None:
        self._read = dict(_tensors(inputs, rows))
        self._copies = {name: tensor.detach().clone() for name, tensor in self._read.items()}

    def check(self, member: Member, stage: str | None = None) -> None:
        """Raise if a tensor has changed.

        Raises:
            PluginRunError: the message names the member, its stage and the tensor.
        """
        for name, tensor in self._read.items():
            if not torch.allclose(tensor.detach(), self._copies[name], rtol=0, atol=0, equal_nan=True):
                raise PluginRunError(
                    f"{member} modified `{name}` in place in `{stage or member.stage}`, but other stages and the "
                    f"caller read the same memory. It must modify a copy, made by `clone()`. {member.advice}"
                )


def _tensors(inputs: StepInputs, rows: Jacobian) -> list[tuple[str, Tensor]]:
    found = [(f"jacobian {name}".strip(), value) for name, value in rows.materialize().items()]
    found += [("gramian", rows.total_gramian), ("norms", rows.total_squared_norms)]
    found += [] if inputs.losses is None else [("losses", inputs.losses)]
    found += [(f"features {index}", tensor) for index, tensor in enumerate(inputs.features)]
    found += [(f"feature_grads {index}", tensor) for index, tensor in enumerate(inputs.feature_grads)]
    return found + ([] if inputs.targets is None else [("targets", inputs.targets)])
