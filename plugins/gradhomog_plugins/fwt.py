"""Feature-wise transformation: random scales and shifts of an encoder's channels, to imitate other domains."""

import functools
import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval, MinLen
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from gradhomog import Homogenizer, HomogenizerSpec, OptionError, Step, TaskKey, hookimpl, to_device
from gradhomog_plugins._layer_names import list_layers, matching_layers

SHARPNESS = 100  # of the softplus in the authors' code, which is the positive part within log(2)/100


class FWT(Homogenizer):
    """Random affine transformation of each channel after batch normalization, in training only.

        z' = γ ⊙ z + β,  γ_c ~ N(1, σ_γ²),  β_c ~ N(0, σ_β²) for every channel c
        σ_γ = softplus(θ_γ),  σ_β = softplus(θ_β),  softplus(θ) = log(1 + e^{100 θ}) / 100

    Args:
        gamma: θ_γ in [−1, 10]: the standard deviation of the scales if it is above 0.1; −1 disables them.
        beta: θ_β in [−1, 10]: the standard deviation of the shifts if it is above 0.1; −1 disables them.
        layers: names in the encoder or glob patterns: any layers with outputs `[n, channels, ...]`. None: the published
            layers, which are the last batch normalization of each residual block and that of its shortcut, and in a
            network without residual blocks every batch normalization.
        seed: seed of all draws.

    Use it when meta-test tasks come from domains that are absent from training, whose features differ from those of
    training in the means and scales of channels. No measurement here supports it yet: compare with the plain learner.
    It is not designed to change norms or cosines of the rows.

    Support and query images of a task have the same γ and β in all inner steps, as if they came from one other domain.
    Draws are a function of the seed, the number of the meta-step and the task's slot, so a repeated meta-step has the
    same draws. Without `begin`, as in a multi-task loop, every pass has new draws. An encoder in evaluation mode is
    unchanged. A residual block is a submodule, except `torch.nn.Sequential`, with at least two batch normalizations as
    attributes.

    Differentiable: rows are unchanged, and γ and β are constants.

    State: the number of meta-steps.

    Cost: one multiplication and one addition per activation of the transformed layers.

    Source: Tseng et al. 2020, arXiv 2001.08735, section 3.2, with the fixed θ of its experiments ("FT"); the authors'
    code.

    Deviations: (1) θ is fixed; learning it with a pseudo-unseen domain ("LFT") is not included. Fixed, it is one number
    for all channels. (2) The softplus and its role as standard deviation are those of the code; the paper writes
    N(1, softplus(θ)), which could also be a variance. (3) Transformed layers are those of the code; the paper names
    only the last batch normalization of a block, not that of the shortcut. Encoders without batch normalization are
    transformed after every convolution. (4) The code draws once per forward pass, in which it encodes support and query
    together. Here they are encoded separately, with the same draws.

    >>> import torch, gradhomog
    >>> encoder = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU())
    >>> pipe = gradhomog.pipeline("fwt")
    >>> x = torch.rand(4, 1, 8, 8)
    >>> with pipe.attached(encoder):
    ...     pipe.begin(gradhomog.TaskKey(0), "support")
    ...     transformed = encoder(x)
    >>> torch.equal(transformed, encoder(x))
    False
    """

    state_names = {"steps": int}

    def __init__(
        self,
        gamma: Annotated[float, Interval(ge=-1, le=10)] = 0.3,
        beta: Annotated[float, Interval(ge=-1, le=10)] = 0.5,
        layers: Annotated[str, MinLen(1)] | Annotated[Sequence[str], MinLen(1)] | None = None,
        seed: int = 0,
    ) -> None:
        self.gamma, self.beta, self.layers, self.seed = gamma, beta, layers, seed
        self.steps = 0
        self._key: TaskKey | None = None
        self._draws: dict[str, tuple[Tensor, Tensor]] = {}
        self._start_step()

    def attach(self, encoder: nn.Module) -> list[torch.utils.hooks.RemovableHandle]:
        self._start_step()
        return [
            layer.register_forward_hook(functools.partial(self._transform, encoder, name))
            for name, layer in select_layers(encoder, self.layers).items()
        ]

    def begin(self, key: TaskKey, part: Literal["support", "query"], generator: torch.Generator) -> None:
        if self._number != self.steps:
            self._start_step()
        if key != self._key:  # support and query of a task have the same draws
            self._key, self._generator, self._draws = key, generator, {}

    def update(self, step: Step) -> Mapping[str, Any]:
        return {"steps": self.steps + 1}

    def _transform(self, encoder: nn.Module, name: str, layer: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        if not encoder.training:  # not of the layer: `norm="frozen"` sets batch normalization to evaluation mode
            return None
        if self._number != self.steps:
            self._start_step()
        if self._key is None or name not in self._draws:
            self._draws[name] = self._draw(output.shape[1])
        draws = to_device(torch.stack(self._draws[name]), output.device, output.dtype)
        gamma, beta = draws.reshape(2, -1, *[1] * (output.dim() - 2))
        transformed: Tensor = gamma * output + beta
        return transformed

    def _draw(self, channels: int) -> tuple[Tensor, Tensor]:
        """γ and β of a layer, float64 `[channels]`."""
        noise = torch.randn(2, channels, generator=self._generator, dtype=torch.float64)
        deviations = softplus(torch.tensor([self.gamma, self.beta], dtype=torch.float64), beta=SHARPNESS)
        return 1 + deviations[0] * noise[0], deviations[1] * noise[1]

    def _start_step(self) -> None:
        """Remove the draws of the last task; without `begin`, draws are from a generator of the meta-step."""
        self._number, self._key = self.steps, None
        self._generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{self.steps}".encode()))
        self._draws = {}


def select_layers(encoder: nn.Module, layers: str | Sequence[str] | None) -> dict[str, nn.Module]:
    """Return the layers that `layers` selects, by name; None: the published ones.

    Raises:
        OptionError: a pattern matches no layer, or there is neither batch normalization nor a convolution.
    """
    modules = dict(encoder.named_modules())
    submodules = {name: module for name, module in modules.items() if name}
    if layers is not None:
        return matching_layers(layers, submodules, "layers")
    chosen = _published_layers(modules)
    if not chosen:
        raise OptionError(
            f"the encoder must have batch normalization or convolutions; got {type(encoder).__name__} with the layers "
            f"{list_layers(submodules)}. Name the `layers`."
        )
    return {name: modules[name] for name in chosen}


def _published_layers(modules: Mapping[str, nn.Module]) -> list[str]:
    norms = [name for name, module in modules.items() if isinstance(module, _BatchNorm)]
    blocks: dict[str, list[str]] = {}  # the batch normalizations that are attributes of a block, in their order
    for name in norms:
        parent = name.rpartition(".")[0]
        if parent and not isinstance(modules[parent], nn.Sequential):
            blocks.setdefault(parent, []).append(name)
    residual = {block: names for block, names in blocks.items() if len(names) > 1}
    if not residual:
        return norms or [name for name, module in modules.items() if isinstance(module, _ConvNd)]
    inner = {name for names in residual.values() for name in names[:-1]}
    return [name for name in norms if name not in inner and name.startswith(tuple(f"{block}." for block in residual))]


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(
        factory=FWT,
        summary="random scales and shifts of the encoder's channels, for unseen domains",
        reference="Tseng et al. 2020, arXiv 2001.08735",
        traits={"differentiable", "stateful", "stochastic", "scale_equivariant", "rotation_equivariant"},
    )
