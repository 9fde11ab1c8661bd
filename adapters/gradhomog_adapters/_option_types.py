"""Annotated types of the learners' options, which their constructors validate."""

from typing import Annotated

from annotated_types import Ge, Gt

Count = Annotated[int, Ge(1)]
CountOrZero = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
