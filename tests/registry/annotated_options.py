"""A plugin whose options have every annotation that gradhomog supports."""
# ruff: noqa: B006

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval, Le, MaxLen, MinLen

from gradhomog import Homogenizer, HomogenizerSpec, hookimpl


class AnnotatedOptions(Homogenizer):
    """A homogenizer that stores its options."""

    def __init__(
        self,
        needed: int,
        count: int = 1,
        rate: float = 0.5,
        flag: bool = False,
        label: str = "x",
        mode: Literal["fast", "slow"] = "fast",
        many: list[float] = [],
        bare: list = [],  # type: ignore[type-arg]
        pair: tuple[int, str] = (1, "a"),
        table: dict[str, float] = {},
        plain: Mapping = {},  # type: ignore[type-arg]
        maybe: int | None = None,
        weights: Sequence[float] | Literal["random"] | None = None,
        anything: Any = None,
        at_least: Annotated[float, Ge(0)] = 0.0,
        positive: Annotated[float, Gt(0)] = 1.0,
        share: Annotated[float, Interval(ge=0, lt=1)] = 0.5,
        limit: Annotated[int, Ge(1)] | None = None,
        unbounded: Annotated[float, Interval(ge=0, le=math.inf)] = math.inf,
        each: Sequence[Annotated[float, Ge(0)]] = (),
        by_name: Mapping[str, Annotated[float, Le(1)]] = {},
        names: Annotated[Sequence[str], MinLen(1), MaxLen(2)] = ("a",),
    ) -> None:
        self.options = {name: value for name, value in locals().items() if name not in ("self", "__class__")}


@hookimpl
def gradhomog_homogenizer() -> HomogenizerSpec:
    return HomogenizerSpec(factory=AnnotatedOptions, summary="annotated_options")
