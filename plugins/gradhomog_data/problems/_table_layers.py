"""Networks for tables, a perceptron or an architecture of torch-rechub, and problems that train their shared part."""

import re
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gradhomog_data._packages import require_package
from gradhomog_data.networks import mlp
from gradhomog_data.problems._held_out import HeldOutProblem

Architecture = Literal["shared_bottom", "mmoe", "ple"] | None
"""Architectures of torch-rechub; None is a perceptron with two hidden layers, whose parameters are all shared."""

EXPERTS = 8
"""Experts of MMoE. This number, the numbers of PLE and the sizes relative to an expert are those of the example
`run_ali_ccp_multi_task.py` of torch-rechub, whose bottom has 117 units beside 8 experts of 16 units."""

TASK_SPECIFIC = re.compile(r"\.(towers|gates|gates_specific|experts_specific)\.")
"""Names of parameters on which the loss of one task only depends; those of PLE with one level."""


def table_layers(architecture: Architecture, inputs: int, outputs: int, width: int) -> nn.Module:
    """Return a network from `[n, inputs]` to `[n, outputs]`, one output per task, without a sigmoid.

    Raises:
        DataError: torch-rechub is not installed.
    """
    if architecture is None:
        return nn.Sequential(*mlp((inputs,), outputs, width))
    return ExpertLayers(architecture, inputs, outputs, width)


class ExpertLayers(nn.Module):
    """SharedBottom, MMoE or PLE of torch-rechub: outputs y_t = h_t(Σ_e g_t(x)_e f_e(x)), with a tower h_t of task t.

    The experts f_e have one hidden layer of `width` units, the towers one of half as many. MMoE (Ma et al. 2018, doi
    10.1145/3219819.3220007): the gates g_t, a softmax of a linear layer, weigh the same 8 experts. PLE (Tang et al.
    2020, doi 10.1145/3383313.3412236), with one level: each gate weighs the two experts of its task and a shared one.
    SharedBottom: one f of 8 · width units, without gates.

    It differs from the papers, as torch-rechub does: all hidden layers have batch normalization, and the gates have it
    before the softmax, with a bias.

    >>> layers = ExpertLayers("mmoe", inputs=5, outputs=2, width=4)
    >>> layers(torch.zeros(3, 5)).shape
    torch.Size([3, 2])
    """

    def __init__(self, architecture: Architecture, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        require_package(f"`problem.architecture` {architecture} is in", "torch_rechub", "torch-rechub", "torch-rechub")
        from torch_rechub.basic.features import DenseFeature
        from torch_rechub.models.multi_task import MMOE, PLE, SharedBottom

        # A task of the type "regression" has no sigmoid.
        common = [DenseFeature("inputs", inputs)], ["regression"] * outputs
        expert, towers = {"dims": [width]}, [{"dims": [max(width // 2, 1)]}] * outputs
        self.architecture = architecture
        self.model: Any
        if architecture == "shared_bottom":
            self.model = SharedBottom(*common, {"dims": [EXPERTS * width]}, towers)
        elif architecture == "mmoe":
            self.model = MMOE(*common, EXPERTS, expert, towers)
        else:
            self.model = PLE(*common, 1, 2, 1, expert, towers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(self.columns(x), 1)

    def columns(self, x: Tensor) -> list[Tensor]:
        """Return the outputs `[n, 1]` of each task; their backward passes do not visit the towers of other tasks."""
        towers = self.model.towers
        if self.architecture == "ple":
            mixed = self.model.cgc_layers[0]([x] * (len(towers) + 1))
        elif self.architecture == "mmoe":
            experts = torch.stack([expert(x) for expert in self.model.experts], 1)
            mixed = [(gate(x)[:, :, None] * experts).sum(1) for gate in self.model.gates]
        else:
            mixed = [self.model.bottom_mlp(x)] * len(towers)
        return [tower(part) for tower, part in zip(towers, mixed, strict=True)]


class TableProblem(HeldOutProblem):
    """A held-out problem whose shared parameters are homogenized; towers and gates get the gradient of their task."""

    @property
    def shared_part(self) -> dict[str, Tensor]:
        """The parameters that two or more losses depend on, and all those of a network without towers."""
        return {name: part for name, part in self.network.named_parameters() if not TASK_SPECIFIC.search(name)}
