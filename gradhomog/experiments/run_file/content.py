"""Problems and networks by name, as in `problem.name` and `network.name` of a run file."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from gradhomog.errors import ConfigError, did_you_mean
from gradhomog.experiments.run_file.validation import build
from gradhomog.registry import installed
from gradhomog.registry.options import option_parameters
from gradhomog.registry.specs import ProblemSpec

if TYPE_CHECKING:
    from torch import nn

EPISODIC = (
    "learner", "domains", "episodes", "test", "network.channels", "train.inner", "train.inner_steps", "train.inner_lr",
    "train.validation_episodes", "train.ensemble", "train.augmentation",
)  # fmt: skip
"""Keys of a run file that concern episodes, which multi-task problems do not have."""


def find_problem(name: Any) -> ProblemSpec:
    """Return the problem of a name.

    Raises:
        ConfigError: the name is missing. PluginError: it is unknown, or the plugin cannot be used.
    """
    if name is None:
        names = ", ".join(installed().names("problems"))
        raise ConfigError(f"`problem.name` is missing. Installed problems: {names}.")
    return cast(ProblemSpec, installed().load("problems", str(name))[1])


def unused_keys(spec: ProblemSpec) -> tuple[str, ...]:
    """Return the key paths of a run file that have no meaning with a problem."""
    return (*EPISODIC, *spec.unused_keys)


def problem_table(spec: ProblemSpec, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table `[problem]` of a run file with the defaults of its options.

    Raises:
        ConfigError: a key is unknown, or a value has the wrong type or is out of range.
    """
    fields: list[Any] = [("name", str)]
    for name, parameter in option_parameters(spec).items():
        default = dataclasses.MISSING if parameter.default is parameter.empty else parameter.default
        factory = dataclasses.field(default_factory=lambda value=default: _as_toml(value))  # type: ignore[misc]
        fields.append((name, parameter.annotation, dataclasses.field() if default is dataclasses.MISSING else factory))
    made: Any = build(dataclasses.make_dataclass("Options", fields, kw_only=True), content, "problem.")
    # TOML has no null.
    return {name: _as_toml(value) for name, value in dataclasses.asdict(made).items() if value is not None}


def _as_toml(value: Any) -> Any:
    """Return a value as TOML stores it: tuples are lists, and integers of more than 64 bits are floats."""
    if isinstance(value, (list, tuple)):
        return [_as_toml(item) for item in value]
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


NETWORKS = {
    name: f"gradhomog_data.networks:{name}" for name in ("conv4", "conv6", "mlp", "resnet10", "resnet12", "resnet18")
}
"""The built-in networks: the function of each name."""


def check_network(name: str) -> None:
    """Raise `ConfigError` unless a name is that of a built-in network, or has the form `module:function`."""
    if name not in NETWORKS and not re.fullmatch(r"[\w.]+:\w+", name):
        raise ConfigError(
            f"`network.name` must be one of {', '.join(NETWORKS)}, or module:function; got {name!r}."
            f"{did_you_mean(name, NETWORKS)}"
        )


def has_maps(name: str) -> bool:
    """True if the encoder of a network can end with feature maps: its function has a parameter `flatten`."""
    return "flatten" in inspect.signature(_find_network(name)).parameters


def build_network(
    name: str, input_shape: Sequence[int], outputs: int, width: int, *, flatten: bool = True
) -> tuple[nn.Module, nn.Module]:
    """Return the encoder and head of a network, initialized from PyTorch's global generator.

    Args:
        name: a key of `NETWORKS`, or `module:function`.
        input_shape: shape of one input: (channels, height, width) for images.
        outputs: classes or targets, >= 1.
        width: filters of the first block, or hidden units, >= 1.
        flatten: False makes the encoder return its last feature map, `[n, maps, h, w]`.

    Raises:
        ConfigError: the name is unknown, or the network does not support inputs of this shape.

    >>> encoder, head = build_network("conv4", (3, 84, 84), outputs=5, width=64)
    >>> head
    Linear(in_features=1600, out_features=5, bias=True)
    """
    if not flatten and not has_maps(name):
        raise ConfigError(f"`network.name` {name} has no feature maps for `flatten=False`; use a network for images.")
    return _find_network(name)(tuple(input_shape), outputs, width, **({} if flatten else {"flatten": False}))


def _find_network(name: str) -> Callable[..., tuple[nn.Module, nn.Module]]:
    check_network(name)
    try:
        function: Callable[..., Any] = pkgutil.resolve_name(NETWORKS.get(name, name))
    except (ImportError, AttributeError) as cause:
        raise ConfigError(
            f"`network.name` {name} cannot be imported: {cause}. Install its package, or add the folder of its module "
            "to PYTHONPATH."
        ) from cause
    return function
