"""Keep functions of the library out of the code that `torch.compile` compiles."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def uncompiled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return a function whose code is not compiled if a compiled function calls it.

    Dynamo would compile validation, solvers in NumPy and the backward passes of the rows: for seconds, or not at all.
    """

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if torch.compiler.is_compiling():
            # Not at import: it imports the compiler, which takes a second, and most programs do not compile.
            return torch.compiler.disable(function)(*args, **kwargs)  # type: ignore[no-any-return, no-untyped-call]
        return function(*args, **kwargs)

    return call
