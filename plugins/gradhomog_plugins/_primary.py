"""The primary task of a method that treats the other tasks as auxiliary or as constraints: by slot or by domain."""

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gradhomog import OptionError, Step

Primary = Annotated[int, Ge(0)] | str
"""Type of the option `primary`: a slot, or a domain."""


def primary_tasks(method: str, primary: Primary, step: Step, required_in: str | None) -> Tensor:
    """Return True for the tasks in the slot `primary`, or of the domain `primary`: bool `[tasks]`.

    Raises:
        OptionError: the batch has no such task, and `required_in` is not None: the batches that must have one, for
            the message.
    """
    found = _found(primary, step)
    if required_in is not None and not any(found):
        raise OptionError(
            f"{method}: `primary` must be the slot or the domain of a task in {required_in}; {_mismatch(primary, step)}"
        )
    return torch.tensor(found)


def primary_index(method: str, primary: Primary, step: Step) -> int:
    """Return the index in the batch of the only task in the slot `primary`, or of the domain `primary`.

    Raises:
        OptionError: the batch has no such task, or several.
    """
    found = _found(primary, step)
    if sum(found) != 1:
        raise OptionError(
            f"{method}: `primary` must be the slot or the domain of exactly one task in every batch; "
            f"{_mismatch(primary, step)}"
        )
    return found.index(True)


def _found(primary: Primary, step: Step) -> list[bool]:
    if isinstance(primary, str):
        return [key.domain == primary for key in step.keys]
    return [key.slot == primary for key in step.keys]


def _mismatch(primary: Primary, step: Step) -> str:
    domains = [key.domain for key in step.keys if key.domain]
    return (
        f"got {primary!r}, but the batch has the slots {', '.join(str(key.slot) for key in step.keys)} and "
        f"{'the domains ' + ', '.join(sorted(domains)) if domains else 'no domains'}. "
        "Pass losses in a dict, or `domains`, to name the tasks."
    )
