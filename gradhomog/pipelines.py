"""A pipeline: homogenizers in the user's order, compiled into a chain of the stages they override."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog import expression
from gradhomog import rows as row_math
from gradhomog.engine.chain import Chain
from gradhomog.engine.finite import Nonfinite
from gradhomog.engine.given import at_taps, check_members, check_step
from gradhomog.engine.member import Member
from gradhomog.engine.observation import Observation
from gradhomog.errors import ConfigError, GradhomogError, OptionError
from gradhomog.evidence import TaskKey, task_keys
from gradhomog.homogenization import Homogenization
from gradhomog.homogenizer import Homogenizer, Part
from gradhomog.rows import AnyRows, Direction, Rows


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
        check_members(members)
        self.members = tuple(members)
        self.nonfinite: Nonfinite = nonfinite
        self._text = text
        self._chain = Chain(self.members)
        self._parts: dict[str, Pipeline] = {}

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
            for member in self._chain.attaching:
                for handle in member.attach(encoder):
                    stack.callback(member.detach, handle)
            try:
                yield
            except GradhomogError:
                raise
            except Exception as cause:
                for member in self._chain.attaching:
                    if member.caused(cause):
                        raise member.failure("what its `attach` attached", cause) from cause
                raise

    def begin(self, key: TaskKey, part: Part) -> None:
        """Tell what is attached which inputs the encoder runs on from now on."""
        for member in self._chain.beginning:
            member.begin(key, part)

    def transform(self, features: Tensor, keys: Sequence[TaskKey]) -> list[Tensor]:
        """Pass query features `[tasks, queries, features]` through the `transform` stages.

        Returns the features before the first stage and after each: the last goes to the head, and the loss's
        derivatives by all of them are the `feature_cotangents` that `homogenize` takes.
        """
        taps = [features]
        for member in self._chain.transforming:
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
        transforms = len(self._chain.transforming)
        return self.homogenize(
            jacobian,
            losses,
            domains=domains,
            features=at_taps("features", features, transforms),
            feature_cotangents=at_taps("feature_cotangents", feature_cotangents, transforms),
            targets=targets,
            create_graph=create_graph,
        ).direction

    def homogenize(
        self,
        jacobian: AnyRows,
        losses: Tensor | None = None,
        *,
        domains: Sequence[str] | None = None,
        features: Sequence[Tensor] = (),
        feature_cotangents: Sequence[Tensor] = (),
        targets: Tensor | None = None,
        create_graph: bool = False,
        inspect: bool = False,
        nonfinite: Nonfinite | None = None,
    ) -> Homogenization:
        """`combine` for learners: takes the features at every tap of `transform`, and tells more of the step.

        With `inspect` the Gramian of the rows is computed even if no stage needs it; `nonfinite` is for this step only.
        """
        tasks = check_step(self.members, jacobian, losses, domains, create_graph)
        if not create_graph:
            jacobian = row_math.detach(jacobian)
            losses = None if losses is None else losses.detach()
        keys = task_keys(tasks, tuple(domains or ()))
        chain = self._chain
        gramian_wanted = chain.needs_gramian or inspect
        whole = Observation(
            jacobian, losses, keys, features, feature_cotangents, targets, gramian_wanted=gramian_wanted
        )  # fmt: skip
        # One mode for all: a statistic that is computed (and cached) without a graph would cut it for later readers.
        with torch.set_grad_enabled(create_graph):
            policy, judged = nonfinite or self.nonfinite, chain.judged(gramian_wanted)
            drawn = chain.positions() if judged == "afterwards" else []
            observation, kept = chain.finite(whole, policy, judged)
            acted = chain.act(observation, inspect)
            direction, weights = acted.direction()
            if judged == "afterwards" and not row_math.all_finite(direction):
                for generator, position in drawn:
                    generator.set_state(position)
                observation, kept = chain.finite(whole, policy, "rows")
                acted = chain.act(observation, inspect)
                direction, weights = acted.direction()
            chain.check(direction)
        if chain.updating:
            with torch.no_grad():
                chain.update(acted)
        known = "block_gramians" in observation.__dict__
        gramian = observation.gramian() if inspect or known else None
        if create_graph:
            gramian = None if gramian is None else gramian.detach()
            weights = None if weights is None else weights.detach()
        return Homogenization(direction, kept, weights, gramian, acted.stages, chain.measured())

    def gramian_after(self, jacobian: Rows, losses: Tensor, parameters: str = "*", **shown: Any) -> Tensor:
        """The Gramian of the rows after all `mix` and `rows` stages, over the parameters that a glob pattern matches.

        For looking, not for stepping: no `update`, no direction. `shown` as for `homogenize`.
        """
        domains = shown.pop("domains", None)
        keys = task_keys(len(losses), tuple(domains or ()))
        with torch.no_grad():
            observation, _ = self._chain.finite(Observation(jacobian, losses, keys, **shown), self.nonfinite, "norms")
            return self._chain.act(observation, True).last().gramian(parameters)

    # -- state -------------------------------------------------------------------------------------------------------

    def part(self, name: str) -> Pipeline:
        """The pipeline of one group of parameters, where groups are homogenized apart: with a state of its own.

        It starts as this one is when the group is first asked for, and is saved and loaded with this one.

        Raises:
            OptionError: a homogenizer acts before the rows exist, so that there is one of it for all parameters.
        """
        if name not in self._parts:
            for member in self.members:
                if member.before_rows or member.homogenizer.overrides("begin"):
                    raise OptionError(
                        f"{member} acts within the network, before there are gradients to be grouped. "
                        "Leave it out, or homogenize all parameters together (per='model')."
                    )
            copies = [replace(member, homogenizer=copy.deepcopy(member.homogenizer)) for member in self.members]
            self._parts[name] = Pipeline(copies, self.nonfinite, self._text)
        return self._parts[name]

    def state_dict(self) -> dict[str, Any]:
        """All that the homogenizers carry, fit for `torch.save`; empty entries for those that carry nothing."""
        whole = {f"{index}:{m.selector}": m.state_dict() for index, m in enumerate(self.members)}
        return whole | {f"part {name}": part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state; the pipeline must have the same homogenizers in the same order."""
        names = [f"{index}:{member.selector}" for index, member in enumerate(self.members)]
        parts = [name for name in state if name.startswith("part ")]
        if list(state) != [*names, *parts]:
            raise ConfigError(f"the saved state is of the pipeline {list(state)}; this one is {names}.")
        before, parts_before = self.state_dict(), dict(self._parts)
        try:
            for name, member in zip(names, self.members, strict=True):
                member.load_state_dict(state[name])
            self._parts.clear()
            for name in parts:
                self.part(name.removeprefix("part ")).load_state_dict(state[name])
        except Exception:
            self._parts = parts_before
            for name, member in zip(names, self.members, strict=True):  # all or nothing
                member.load_state_dict(before[name])
            raise
