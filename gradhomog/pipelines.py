"""A pipeline: homogenizers in the user's order, compiled into a chain of the stages they override."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog import expression, finite
from gradhomog import rows as row_math
from gradhomog.errors import (
    ConfigError,
    NotDifferentiableError,
    OptionError,
)
from gradhomog.evidence import Evidence, Observation, TaskKey
from gradhomog.finite import Nonfinite
from gradhomog.homogenization import Homogenization, Stage
from gradhomog.homogenizer import Homogenizer, Part
from gradhomog.member import Member
from gradhomog.rows import Direction, Rows


class Pipeline:
    """Homogenizers in order. Made by `gradhomog.pipeline("isi + reweight(beta=1.5)")`; empty, it is the plain learner.

    Args:
        members: in the order in which their stages act.
        nonfinite: what to do with a task whose loss or row holds NaN or infinity: `"raise"` a `NonfiniteError` naming
            it and leave all state untouched, or `"drop"` it and take the mean over the others.
        text: what the user wrote, where that is not the names of the members.
    """

    def __init__(self, members: Sequence[Member] = (), nonfinite: Nonfinite = "raise", text: str | None = None) -> None:
        if nonfinite not in ("raise", "drop"):
            raise OptionError(f"`nonfinite` must be 'raise' or 'drop'; got {nonfinite!r}.")
        objects = [id(member.homogenizer) for member in members]
        if len(set(objects)) < len(objects):
            raise OptionError("a pipeline must not hold the same homogenizer object twice; make a second one.")
        self.members = tuple(members)
        self._text = text
        self.nonfinite: Nonfinite = nonfinite
        self._attaching = tuple(m for m in members if m.homogenizer.overrides("attach"))
        self._beginning = tuple(m for m in members if m.homogenizer.overrides("begin"))
        self._transforming = tuple(m for m in members if m.homogenizer.overrides("transform"))
        self._updating = tuple(m for m in members if m.homogenizer.overrides("update"))
        self._on_rows: tuple[tuple[str, Member], ...] = tuple(
            (stage, m) for m in members for stage in ("mix", "rows") if m.homogenizer.overrides(stage)
        )
        # If anybody needs the Gramian, norms are read off its diagonal; else they cost a pass of their own, N/2 times
        # less.
        reading = {*(m for _, m in self._on_rows), *self._updating} if members else set()
        self._needs_gramian = any("gramian" in m.needs for m in reading)
        self._needs_norms = any("norms" in m.needs for m in reading)

    def __str__(self) -> str:
        if self._text is not None:
            return self._text
        return expression.render([(member.selector, dict(member.options)) for member in self.members])

    def __repr__(self) -> str:
        return f"Pipeline({str(self)!r}, nonfinite={self.nonfinite!r})"

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Homogenizer]:
        return (member.homogenizer for member in self.members)

    # -- stages before the rows --------------------------------------------------------------------------------------

    @contextmanager
    def attached(self, encoder: nn.Module) -> Iterator[None]:
        """Within the context the encoder computes as the `attach` stages want; afterwards as before, even on errors."""
        with ExitStack() as stack:
            for member in self._attaching:
                for handle in member.attach(encoder):
                    stack.callback(handle.remove)
            yield

    def begin(self, key: TaskKey, part: Part) -> None:
        """Tell what is attached which inputs the encoder runs on from now on."""
        for member in self._beginning:
            member.begin(key, part)

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> list[Tensor]:
        """Pass query features `[tasks, queries, features]` through the `transform` stages.

        Returns the features before the first stage and after each: the last goes to the head, and the loss's
        derivatives by all of them are the `feature_cotangents` that `homogenize` takes.
        """
        taps = [features]
        for member in self._transforming:
            taps.append(member.transform(taps[-1], keys))
        return taps

    # -- the step ----------------------------------------------------------------------------------------------------

    def combine(
        self,
        jacobian: Rows,
        losses: Tensor | Sequence[float] | None = None,
        *,
        domains: Sequence[str] | None = None,
        features: Tensor | Sequence[Tensor] = (),
        feature_cotangents: Tensor | Sequence[Tensor] = (),
        targets: Tensor | None = None,
        create_graph: bool = False,
    ) -> Direction:
        """One whole step: rows in, the direction of the shared parameters out, `update` included.

        Args:
            jacobian: one gradient per task, `[tasks, params]` or a dict of `[tasks, *shape]`; never copied as a whole
                and never written to. Its dtype is the direction's; N×N algebra is done in float64.
            losses: `[tasks]`, for the homogenizers that need them.
            domains: one name per task, for state held by domain.
            features, feature_cotangents: `[tasks, queries, features]`, for the homogenizers that learn from them: what
                went into `transform` and the losses' derivatives by what came out of it. Where several homogenizers
                transform, sequences: all that `transform` returned, and the derivatives by each.
            targets: `[tasks, queries]`, the classes of the queries, for those that tell them apart.
            create_graph: keep the graph from jacobian and losses to the direction. Every homogenizer must claim
                `differentiable`.

        Returns:
            `[params]`, or a dict of `[*shape]`.

        Raises:
            NonfiniteError, NotDifferentiableError, OptionError, PluginRunError, DataError.

        Cost: one pass over the rows for the Gramian (if a method needs it) and one for the direction.

        >>> import torch, gradhomog
        >>> jacobian = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
        >>> gradhomog.pipeline("pcgrad").combine(jacobian)
        tensor([0.2500, 0.7500])
        """
        if losses is not None and not isinstance(losses, Tensor):
            losses = torch.stack([torch.as_tensor(loss, dtype=torch.float64) for loss in losses])
        return self.homogenize(
            jacobian,
            losses,
            domains=domains,
            features=self._at_taps("features", features),
            feature_cotangents=self._at_taps("feature_cotangents", feature_cotangents),
            targets=targets,
            create_graph=create_graph,
        ).direction

    def _at_taps(self, name: str, given: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
        taps = len(self._transforming) + 1
        if isinstance(given, Tensor) and taps <= 2:  # one transform reads its input there and its cotangents here
            return (given,) * taps
        if isinstance(given, Tensor) or (given and len(given) != taps):
            found = "a tensor" if isinstance(given, Tensor) else f"{len(given)} tensors"
            raise OptionError(
                f"`{name}` must be a sequence of {taps} tensors, one before and one after each of the {taps - 1} "
                f"homogenizers that transform features; got {found}. Pass what transform() returned, and the "
                "derivatives of the losses by each."
            )
        return given

    def homogenize(
        self,
        jacobian: Rows,
        losses: Tensor | None = None,
        *,
        domains: Sequence[str] | None = None,
        features: Sequence[Tensor] = (),
        feature_cotangents: Sequence[Tensor] = (),
        targets: Tensor | None = None,
        create_graph: bool = False,
        inspect: bool = False,
    ) -> Homogenization:
        """`combine` for learners: takes the features at every tap of `transform`, and tells more of the step.

        With `inspect` the Gramian of the rows is computed even if no stage needs it.
        """
        tasks = self._validate(jacobian, losses, domains, create_graph)
        if not create_graph:
            jacobian = row_math.detach(jacobian)
            losses = None if losses is None else losses.detach()
        keys = [TaskKey(slot, domains[slot] if domains else "") for slot in range(tasks)]
        observation = Observation(
            jacobian, losses, keys, features, feature_cotangents, targets,
            gramian_wanted=self._needs_gramian or inspect,
        )  # fmt: skip
        # One mode for all: a statistic that is computed (and cached) without a graph would cut it for later readers.
        with torch.set_grad_enabled(create_graph):
            observation, kept = finite.apply(
                observation, self.nonfinite, self._needs_gramian or self._needs_norms or inspect
            )
            current, mixing, replaced, seen, stages = self._act(observation, inspect)
            if replaced or mixing is None:
                direction = row_math.mean(current.rows)
                weights = None if replaced else torch.ones(len(kept), dtype=torch.float64)
            else:
                weights = mixing.sum(0)  # direction = mean of (C·J) = 1/N (1ᵀC)·J
                direction = row_math.weighted_mean(observation.rows, weights)
        with torch.no_grad():
            for member in self._updating:
                evidence = seen.get(id(member)) or self._evidence(observation, member)
                member.update(evidence)
        known = "block_gramians" in observation.__dict__
        gramian = observation.gramian().detach() if inspect or known else None
        return Homogenization(
            direction, kept, None if weights is None else weights.detach(), gramian, stages, self._measured()
        )

    def gramian_after(self, jacobian: Rows, losses: Tensor, parameters: str = "*", **shown: Any) -> Tensor:
        """The Gramian of the rows after all `mix` and `rows` stages, over the parameters that a glob pattern matches.

        For looking, not for stepping: no `update`, no direction. `shown` as for `homogenize`.
        """
        domains = shown.pop("domains", None)
        keys = [TaskKey(slot, domains[slot] if domains else "") for slot in range(len(losses))]
        with torch.no_grad():
            observation, _ = finite.apply(Observation(jacobian, losses, keys, **shown), self.nonfinite, True)
            return self._act(observation, True)[0].gramian(parameters)

    def _measured(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for member in self.members:
            if values := member.measured():
                again = sum(name.split("#")[0] == member.selector for name in found)
                found[f"{member.selector}#{again + 1}" if again else member.selector] = values
        return found

    def _act(
        self, observation: Observation, inspect: bool
    ) -> tuple[Observation, Tensor | None, bool, dict[int, Evidence], list[Stage]]:
        """Run the `mix` and `rows` stages; returns the last observation, the product of the mixings since the rows were
        given or replaced, whether they were replaced, the evidence that each member saw, and each stage's Gramian."""
        current, mixing, replaced = observation, None, False
        stages: list[Stage] = []
        seen: dict[int, Evidence] = {}
        for stage, member in self._on_rows:
            evidence = self._evidence(current, member)
            seen.setdefault(id(member), evidence)
            if stage == "mix":
                matrix = member.mix(evidence)
                mixing = matrix if mixing is None else matrix @ mixing
                current = current.mixed(matrix)
            else:
                current = Observation(
                    member.rows(current.rows), current.losses, current.keys, current.features,
                    current.feature_cotangents, current.targets, gramian_wanted=self._needs_gramian or inspect,
                )  # fmt: skip
                mixing, replaced = None, True
            if inspect:
                stages.append(Stage(member.selector, current.gramian().detach()))
        return current, mixing, replaced, seen, stages

    def _evidence(self, observation: Observation, member: Member) -> Evidence:
        if "features" in member.needs and observation.features:
            index = self._transforming.index(member) if member in self._transforming else None
            before, after = (0, 0) if index is None else (index, index + 1)
            observation = observation.at_tap(before, after)
        return Evidence(observation, member.needs, str(member))

    def _validate(
        self, jacobian: Rows, losses: Tensor | None, domains: Sequence[str] | None, create_graph: bool
    ) -> int:
        tasks = next(iter(row_math.blocks(jacobian).values())).shape[0]
        if losses is not None and losses.shape != (tasks,):
            raise OptionError(f"`losses` must have shape [{tasks}], one per task; got {tuple(losses.shape)}.")
        if domains and len(domains) != tasks:
            raise OptionError(f"`domains` must name one domain for each of the {tasks} tasks; got {list(domains)}.")
        if create_graph:
            for member in self.members:
                if member.spec is None or "differentiable" not in member.spec.traits:
                    raise NotDifferentiableError(
                        f"{member} is not differentiable, so create_graph=True would cut the graph in silence. "
                        "Use create_graph=False, or a homogenizer that claims 'differentiable'."
                    )
        return tasks

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that the homogenizers carry, fit for `torch.save`; empty entries for those that carry nothing."""
        return {f"{index}:{m.selector}": m.homogenizer.state_dict() for index, m in enumerate(self.members)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state; the pipeline must have the same homogenizers in the same order."""
        names = [f"{index}:{member.selector}" for index, member in enumerate(self.members)]
        if list(state) != names:
            raise ConfigError(f"the saved state is of the pipeline {list(state)}; this one is {names}.")
        before = self.state_dict()
        try:
            for name, member in zip(names, self.members, strict=True):
                member.homogenizer.load_state_dict(state[name])
        except Exception:
            for name, member in zip(names, self.members, strict=True):  # all or nothing
                member.homogenizer.load_state_dict(before[name])
            raise
