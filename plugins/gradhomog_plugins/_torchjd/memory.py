"""What TorchJD's aggregators keep from step to step, as plain types and tensors, and back.

Their own `state_dict` does not serve. In 0.18 a fresh aggregator refuses that of a used one (its buffers are None when
it is made) or starts again (the key beside them is not saved), and NashMTL's is empty.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradhomog import ConfigError, PluginLoadError


@dataclass(frozen=True)
class Kept:
    """Where a weighting keeps what it keeps.

    Attributes:
        attributes: tensors, arrays, numbers or None.
        key: what its `_state_key` is for these: it starts again at rows of another key.
        resume: makes what follows from them.
    """

    attributes: tuple[str, ...] = ()
    key: Callable[[Any], Any] | None = None
    resume: Callable[[Any], None] | None = None


def _resume_nash_mtl(weighting: Any) -> None:
    weighting.init_gtg = np.eye(weighting.n_tasks)
    if weighting.step > 0:  # at its first step it does this itself
        weighting._init_optim_problem()


BY_NAME: Mapping[str, Kept] = {
    "ExcessMTL": Kept(
        ("_sq_grad_sum", "_weights", "_initial_w", "_warmup_w_sum", "_n_steps"),
        key=lambda kept: (*kept._sq_grad_sum.shape, kept._sq_grad_sum.dtype, kept._sq_grad_sum.device),
    ),
    "GradVac": Kept(("_phi_t",), key=lambda kept: (len(kept._phi_t), kept._phi_t.dtype)),
    "NashMTL": Kept(("step", "n_tasks", "prvs_alpha", "normalization_factor"), resume=_resume_nash_mtl),
    "PCD": Kept(("_sq_norm_ema", "_n_steps"), key=lambda kept: len(kept._sq_norm_ema)),
}
"""By the aggregator's class name; the others keep nothing. A key is asked for where the first attribute is not None."""


class Memory:
    """What one aggregator keeps, to be read and written.

    Raises:
        PluginLoadError: it keeps something that this bridge does not know how to save.
    """

    def __init__(self, name: str, aggregator: Any) -> None:
        self._name, self._kept = name, BY_NAME.get(name, Kept())
        self._holder: Any = getattr(aggregator, "gramian_weighting", getattr(aggregator, "weighting", None))
        stateful = isinstance(aggregator, importlib.import_module("torchjd").Stateful)
        if stateful != (name in BY_NAME) or not all(hasattr(self._holder, each) for each in self._kept.attributes):
            raise PluginLoadError(
                f"torchjd: the installed TorchJD keeps the state of {name} where this version of gradhomog does not "
                "look for it, so it could not be saved. Run: pip install -U gradhomog, or pip install 'torchjd==0.18.*'"
            )

    def read(self) -> dict[str, Any]:
        """All that is kept; not a copy."""
        return {each: _plain(getattr(self._holder, each)) for each in self._kept.attributes}

    def write(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Make the aggregator go on from what was read, its tensors on a device; the state given is taken, not copied.

        Raises:
            ConfigError: it was read from another one.
        """
        if set(state) != set(self._kept.attributes):
            raise ConfigError(
                f"torchjd: the state of {self._name} holds {sorted(self._kept.attributes)}; found {sorted(state)}. "
                "It was saved by another aggregator or version."
            )
        for name, value in state.items():
            if isinstance(getattr(self._holder, name), np.ndarray):
                value = value.cpu().numpy()
            setattr(self._holder, name, value.to(device) if isinstance(value, Tensor) else value)
        if self._kept.key is not None:
            known = state[self._kept.attributes[0]] is not None
            self._holder._state_key = self._kept.key(self._holder) if known else None
        if self._kept.resume is not None:
            self._kept.resume(self._holder)

    def follow(self, device: torch.device) -> None:
        """Move what is kept to the device of the rows: elsewhere it would start again."""
        state = self.read()
        if any(isinstance(value, Tensor) and value.device != device for value in state.values()):
            self.write(state, device)


def _plain(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
