"""The engine of a pipeline: the stages that its members override, in order, run over one step's rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradhomog import rows as row_math
from gradhomog.engine import finite
from gradhomog.engine.finite import Judged, Nonfinite
from gradhomog.engine.member import Member
from gradhomog.engine.observation import Observation
from gradhomog.errors import NonfiniteError
from gradhomog.evidence import Evidence
from gradhomog.homogenization import Stage
from gradhomog.rows import Direction, Rows

# Weights above this make the direction be looked at; of rows of float16, which ends at 65504, those above one.
HEAVY = 1e9


@dataclass
class Acted:
    """What the `mix` and `rows` stages made of a step.

    Attributes:
        first: the observation before the first stage.
        unmixed: that of the rows as given, or as the last `rows` stage made them.
        mixing: what the `mix` stages since then come to, weights `[tasks]` or a matrix; None without any.
        seen: the evidence that each member was shown first, by its identity.
        stages: each stage's Gramian, if asked for.
    """

    first: Observation
    unmixed: Observation
    mixing: Tensor | None = None
    seen: dict[int, Evidence] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)

    @property
    def replaced(self) -> bool:
        """Whether a `rows` stage replaced the rows."""
        return self.unmixed is not self.first

    def last(self) -> Observation:
        """The observation after all stages so far."""
        return self.unmixed if self.mixing is None else self.unmixed.mixed(self.mixing)

    def mix(self, more: Tensor) -> None:
        """One `mix` stage more."""
        before = self.mixing
        if before is None or (more.dim() == 1 and before.dim() == 1):
            self.mixing = more if before is None else more * before
        elif more.dim() == 1:
            self.mixing = more[:, None] * before
        else:
            self.mixing = more * before if before.dim() == 1 else more @ before

    def replace(self, rows: Rows, gramian_wanted: bool) -> None:
        """A `rows` stage."""
        old = self.unmixed
        self.mixing = None
        self.unmixed = Observation(
            rows, old.losses, old.keys, old.features, old.feature_cotangents, old.targets, gramian_wanted=gramian_wanted
        )

    def direction(self) -> tuple[Direction, Tensor | None]:
        """The mean of the rows, and the share of each row given, None if they were replaced."""
        given = self.unmixed.given
        if self.mixing is None:
            weights = torch.ones(len(self.first.keys), dtype=torch.float64)
            # Of rows that the caller gave as one in memory, a stage may have handed back that one: it is the caller's.
            owned = self.replaced and not row_math.any_repeated(self.first.given)
            direction = row_math.mean(given, owned=owned)
        else:
            # direction = mean of (C·J) = 1/N (1ᵀC)·J
            weights = self.mixing if self.mixing.dim() == 1 else self.mixing.sum(0)
            direction = row_math.weighted_mean(given, weights)
        return direction, None if self.replaced else weights


def _generators(member: Member) -> Iterator[torch.Generator]:
    """Those that a member carries, and those of a member that it wraps."""
    carried = [getattr(member.homogenizer, name, None) for name in member.homogenizer.carried]
    yield from (found for found in carried if isinstance(found, torch.Generator))
    for value in vars(member.homogenizer).values():
        if isinstance(value, Member):
            yield from _generators(value)


class Chain:
    """Bound once: in a step there are only the stages that somebody overrides, in the order of the members."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = tuple(members)
        self.attaching = tuple(m for m in members if m.homogenizer.overrides("attach"))
        self.beginning = tuple(m for m in members if m.homogenizer.overrides("begin"))
        self.transforming = tuple(m for m in members if m.homogenizer.overrides("transform"))
        self.updating = tuple(m for m in members if m.homogenizer.overrides("update"))
        self.measuring = tuple(m for m in members if m.homogenizer.overrides("measured"))
        self.on_rows: tuple[tuple[str, Member], ...] = tuple(
            (stage, m) for m in members for stage in ("mix", "rows") if m.homogenizer.overrides(stage)
        )
        self.mixing = tuple(m for stage, m in self.on_rows if stage == "mix")
        # If anybody needs the Gramian, norms are read off its diagonal; else they cost a pass of their own, N/2 times
        # less.
        reading = {*(m for _, m in self.on_rows), *self.updating}
        self.needs_gramian = any("gramian" in m.needs for m in reading)
        self.needs_norms = any("norms" in m.needs for m in reading)
        self.reads_rows = any("rows" in m.needs for m in reading) or any(stage == "rows" for stage, _ in self.on_rows)

    def judged(self, gramian_wanted: bool) -> Judged:
        """What tells whether rows are finite, at the least cost: what is computed anyway, and before anybody reads it.

        Where only their weighted mean is wanted, that will do: NaN and infinity always reach it, and 0 · ∞ is NaN.
        """
        if gramian_wanted or self.needs_norms:
            return "norms"
        return "rows" if self.reads_rows else "afterwards"

    def positions(self) -> list[tuple[torch.Generator, Tensor]]:
        """The generators that `mix` may draw from, and where they are."""
        return [(found, found.get_state()) for member in self.members for found in _generators(member)]

    def finite(self, whole: Observation, policy: Nonfinite, judged: Judged) -> tuple[Observation, tuple[int, ...]]:
        """`finite.apply`, unless it is a `transform` stage that made NaN or infinity of finite features.

        Raises:
            PluginRunError, NonfiniteError.
        """
        try:
            observation, kept = finite.apply(whole, policy, judged)
        except NonfiniteError:
            self._blame_transform(whole)
            raise
        if len(kept) < len(whole.keys):
            self._blame_transform(whole)
        return observation, kept

    def _blame_transform(self, observation: Observation) -> None:
        taps = observation.features
        for member, before, after in zip(self.transforming, taps, taps[1:], strict=False):  # taps may not be given
            if bool(torch.isfinite(before).all()) and not bool(torch.isfinite(after).all()):
                raise member.not_finite("transform")

    def act(self, observation: Observation, inspect: bool) -> Acted:
        """Run the `mix` and `rows` stages."""
        acted = Acted(observation, observation)
        for stage, member in self.on_rows:
            last = acted.last()
            evidence = self.evidence(last, member)
            acted.seen.setdefault(id(member), evidence)
            if stage == "mix":
                acted.mix(member.mix(evidence))
            else:
                acted.replace(member.rows(last.rows), self.needs_gramian or inspect)
            if inspect:
                acted.stages.append(Stage(member.selector, acted.last().gramian().detach()))
        return acted

    def check(self, direction: Direction) -> None:
        """Look at the direction where weights are so large that finite rows may have become infinite.

        Raises:
            PluginRunError: they have.
        """
        if not self.mixing:
            return
        values = [direction] if isinstance(direction, Tensor) else direction.values()
        bound = 1.0 if any(value.dtype == torch.float16 for value in values) else HEAVY
        if math.prod(max(member.largest, 1.0) for member in self.mixing) > bound and not row_math.all_finite(direction):
            raise max(self.mixing, key=lambda member: member.largest).too_large(direction)

    def update(self, acted: Acted) -> None:
        """Run the `update` stages: each member is shown again what it was shown first."""
        for member in self.updating:
            member.update(acted.seen.get(id(member)) or self.evidence(acted.first, member))

    def measured(self) -> Mapping[str, Mapping[str, float | Sequence[float]]]:
        """What the members tell of the step, by name: the second of one name is `name#2`."""
        found: dict[str, Any] = {}
        for member in self.measuring:
            if values := member.measured():
                again = sum(name.split("#")[0] == member.selector for name in found)
                found[f"{member.selector}#{again + 1}" if again else member.selector] = values
        return found

    def evidence(self, observation: Observation, member: Member) -> Evidence:
        """What a member may see: features as its own `transform` was given them, or as the encoder made them."""
        if "features" in member.needs and observation.features:
            index = self.transforming.index(member) if member in self.transforming else None
            before, after = (0, 0) if index is None else (index, index + 1)
            observation = observation.at_tap(before, after)
        return Evidence(observation, member.needs, member)
