"""The primary task of a method that treats the other tasks as auxiliary or as constraints: by slot or by domain."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradhomog import OptionError, Step

Primary = Annotated[int, Ge(0)] | str
"""Type of the option `primary`: a slot, or a domain."""


def primary_tasks(primary: Primary, step: Step, required: str = "", only_one: bool = False) -> Tensor:
    """Return True for the tasks in the slot `primary`, or of the domain `primary`: bool `[tasks]`.

    Raises:
        OptionError: the batch has no such task, or several with `only_one`, although it must have what `required`
            describes: "a task in every batch".
    """
    found = [(key.domain if isinstance(primary, str) else key.slot) == primary for key in step.keys]
    if required and not (sum(found) == 1 if only_one else any(found)):
        domains = sorted(key.domain for key in step.keys if key.domain)
        raise OptionError(
            f"`primary` must be the slot or the domain of {required}; got {primary!r}, but the batch has the slots "
            f"{', '.join(str(key.slot) for key in step.keys)} and "
            f"{'the domains ' + ', '.join(domains) if domains else 'no domains'}. "
            "Pass losses in a dict, or `domains`, to name the tasks."
        )
    return torch.tensor(found)
