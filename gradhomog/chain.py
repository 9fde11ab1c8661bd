"""The engine of a pipeline: the stages that its members override, in order, run over one step's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradhomog import finite
from gradhomog import rows as row_math
from gradhomog.errors import NonfiniteError
from gradhomog.evidence import Evidence
from gradhomog.finite import Nonfinite
from gradhomog.homogenization import Stage
from gradhomog.member import Member
from gradhomog.observation import Observation
from gradhomog.rows import Direction


@dataclass
class Acted:
    """What the `mix` and `rows` stages made of a step.

    Attributes:
        first, last: the observations before the first stage and after the last.
        mixing: product of the mixings since the rows were given or replaced; None without any.
        replaced: whether a `rows` stage replaced the rows.
        seen: the evidence that each member was shown first, by its identity.
        stages: each stage's Gramian, if asked for.
    """

    first: Observation
    last: Observation
    mixing: Tensor | None = None
    replaced: bool = False
    seen: dict[int, Evidence] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)

    def direction(self) -> tuple[Direction, Tensor | None]:
        """The mean of the rows, and the share of each row given, None if they were replaced."""
        given = self.last.given  # as given or replaced, before any mixing
        if self.mixing is None:
            weights = torch.ones(len(self.last.keys), dtype=torch.float64)
            direction = row_math.mean(given, owned=self.replaced)
        else:
            weights = self.mixing.sum(0)  # direction = mean of (C·J) = 1/N (1ᵀC)·J
            direction = row_math.weighted_mean(given, weights)
        return direction, None if self.replaced else weights


class Chain:
    """Bound once: in a step there are only the stages that somebody overrides, in the order of the members."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = tuple(members)
        self.attaching = tuple(m for m in members if m.homogenizer.overrides("attach"))
        self.beginning = tuple(m for m in members if m.homogenizer.overrides("begin"))
        self.transforming = tuple(m for m in members if m.homogenizer.overrides("transform"))
        self.updating = tuple(m for m in members if m.homogenizer.overrides("update"))
        self.on_rows: tuple[tuple[str, Member], ...] = tuple(
            (stage, m) for m in members for stage in ("mix", "rows") if m.homogenizer.overrides(stage)
        )
        # If anybody needs the Gramian, norms are read off its diagonal; else they cost a pass of their own, N/2 times
        # less.
        reading = {*(m for _, m in self.on_rows), *self.updating}
        self.needs_gramian = any("gramian" in m.needs for m in reading)
        self.needs_norms = any("norms" in m.needs for m in reading)

    def finite(self, whole: Observation, policy: Nonfinite, norms_known: bool) -> tuple[Observation, tuple[int, ...]]:
        """`finite.apply`, unless it is a `transform` stage that made NaN or infinity of finite features.

        Raises:
            PluginRunError, NonfiniteError.
        """
        try:
            observation, kept = finite.apply(whole, policy, norms_known)
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
            evidence = self.evidence(acted.last, member)
            acted.seen.setdefault(id(member), evidence)
            if stage == "mix":
                matrix = member.mix(evidence)
                acted.mixing = matrix if acted.mixing is None else matrix @ acted.mixing
                acted.last = acted.last.mixed(matrix)
            else:
                last = acted.last
                acted.last = Observation(
                    member.rows(last.rows), last.losses, last.keys, last.features, last.feature_cotangents,
                    last.targets, gramian_wanted=self.needs_gramian or inspect,
                )  # fmt: skip
                acted.mixing, acted.replaced = None, True
            if inspect:
                acted.stages.append(Stage(member.selector, acted.last.gramian().detach()))
        return acted

    def update(self, acted: Acted) -> None:
        """Run the `update` stages: each member is shown again what it was shown first."""
        for member in self.updating:
            member.update(acted.seen.get(id(member)) or self.evidence(acted.first, member))

    def measured(self) -> Mapping[str, Mapping[str, float | Sequence[float]]]:
        """What the members tell of the step, by name: the second of one name is `name#2`."""
        found: dict[str, Any] = {}
        for member in self.members:
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
        return Evidence(observation, member.needs, str(member))
