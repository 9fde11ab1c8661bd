"""How many inner steps: while training, and at meta-test."""

from __future__ import annotations

from gradhomog import OptionError


def check_steps(inner_steps: int, test_steps: int | None) -> tuple[int, int]:
    """Both numbers; at meta-test as many as in training unless told otherwise.

    Raises:
        OptionError: one is no integer, or negative.
    """
    for name, steps in (("inner_steps", inner_steps), ("test_steps", test_steps)):
        if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or steps < 0):
            raise OptionError(f"`{name}` must be an integer and not negative; got {steps!r}.")
    return inner_steps, inner_steps if test_steps is None else test_steps
