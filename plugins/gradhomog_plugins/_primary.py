"""The primary task of a method that treats the other tasks as auxiliary: by slot or by domain."""

from __future__ import annotations

import torch
from torch import Tensor

from gradhomog import OptionError, Step


def primary_tasks(method: str, primary: int | str, step: Step, required: bool) -> Tensor:
    """Return True for the tasks in the slot `primary`, or of the domain `primary`: bool `[tasks]`.

    Raises:
        OptionError: the batch has no such task, and `required`.
    """
    if isinstance(primary, str):
        found = [key.domain == primary for key in step.keys]
    else:
        found = [key.slot == primary for key in step.keys]
    if required and not any(found):
        domains = ", ".join(sorted({key.domain for key in step.keys if key.domain}))
        raise OptionError(
            f"{method}: `primary` must be the slot or the domain of a task in the first batch; got {primary!r}, but "
            f"the batch has the slots {', '.join(step.by('slot'))} and "
            f"{f'the domains {domains}' if domains else 'no domains'}. "
            "Pass losses in a dict, or `domains`, to name the tasks."
        )
    return torch.tensor(found)
