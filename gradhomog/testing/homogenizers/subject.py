"""A homogenizer under check: made anew as often as needed, shown rows, losses, features and domains."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog import api, expression
from gradhomog.blame import told
from gradhomog.engine.finite import Nonfinite
from gradhomog.engine.member import Member
from gradhomog.errors import GradhomogError, PluginRunError
from gradhomog.evidence import TaskKey
from gradhomog.homogenizer import Homogenizer
from gradhomog.pipelines import Pipeline
from gradhomog.registry import PluginInfo, Registry, installed
from gradhomog.registry.options import bind
from gradhomog.rows import Direction, Rows, blocks
from gradhomog.specs import HomogenizerSpec
from gradhomog.tasks import TaskBatch
from gradhomog.testing.arena import Arena, network
from gradhomog.testing.naming import name_and_options

What = str | tuple[str, Mapping[str, Any]] | HomogenizerSpec
"""A plugin's name, with options as in a pipeline's text or beside it; or a spec that no distribution offers yet."""


class HomogenizerSubject:
    """A homogenizer, by name or by its spec, with the options it is checked with.

    Raises:
        UnknownPluginError, PluginLoadError, OptionError, …: it cannot be made at all.
    """

    def __init__(self, what: What, registry: Registry | None = None) -> None:
        self.registry = registry or installed()
        self.info: PluginInfo | None = None
        self.options: dict[str, Any] = {}
        if isinstance(what, HomogenizerSpec):
            self.spec, self.selector = what, getattr(what.factory, "__name__", "homogenizer")
        else:
            self.selector, self.options = name_and_options("homogenizers", what)
            self.info, spec = self.registry.load("homogenizers", self.selector)
            assert isinstance(spec, HomogenizerSpec)
            self.spec = spec
        self.arena = Arena(self.registry)
        self.acts_before_rows = any(member.before_rows for member in self.pipeline().members)

    def __str__(self) -> str:
        text = expression.render([(self.selector, dict(self.options))])
        if self.info is None:
            return f"homogenizer {text}"
        return f"homogenizer {text} of {self.info.distribution} {self.info.version} ({self.info.module})"

    @property
    def claims(self) -> Set[str]:
        return self.spec.traits

    def pipeline(self, nonfinite: Nonfinite = "raise", assume: str | None = None, **options: Any) -> Pipeline:
        """A fresh one of this homogenizer alone; with `assume`, as if it claimed that trait."""
        given = {**self.options, **options}
        if self.info is not None:
            pipe = api.pipeline([(self.selector, given)], nonfinite=nonfinite, registry=self.registry)
        else:
            made = self._made(given)
            if isinstance(made, Homogenizer):
                pipe = Pipeline([Member(made, self.selector, given, None, self.spec)], nonfinite)
            elif isinstance(made, Sequence):
                pipe = api.pipeline(made, nonfinite=nonfinite, registry=self.registry)
            else:
                raise PluginRunError(f"{self} must make a gradhomog.Homogenizer; it made a {type(made).__name__}.")
        if assume is None:
            return pipe
        return Pipeline([_assuming(member, assume) for member in pipe.members], nonfinite)

    def _made(self, options: Mapping[str, Any]) -> Any:
        bound = bind(self.spec, self.selector, options)
        try:
            return self.spec.factory(**bound)
        except GradhomogError:
            raise
        except (Exception, SystemExit) as cause:
            raise PluginRunError(f"{self} could not be made: {told(cause)}.") from cause

    def combine(
        self, rows: Rows, *, pipe: Pipeline | None = None, losses: Tensor | None = None, steps: int = 1,
        order: Tensor | None = None, create_graph: bool = False,
    ) -> Direction:  # fmt: skip
        """The last of some steps on the same rows, with losses, domains and features to go with them.

        With `order`, everything of the tasks is permuted by it, and the rows given are to be so already.
        """
        pipe = pipe or self.pipeline()
        shown = self.shown(rows, pipe, losses, order)
        for _ in range(steps):
            direction = pipe.combine(rows, create_graph=create_graph, **shown)
        return direction

    def shown(
        self, rows: Rows, pipe: Pipeline, losses: Tensor | None = None, order: Tensor | None = None
    ) -> dict[str, Any]:
        """What a homogenizer may ask for beside the rows: one query per task, whose features are like its row."""
        matrix = torch.cat(list(blocks(rows).values()), dim=1)  # with the graph of the rows, if they have one
        tasks = len(matrix)
        numbers = torch.arange(tasks) if order is None else order
        if losses is None:
            losses = torch.linspace(0.5, 1.5, tasks, dtype=torch.float64)[numbers]
        # A network has more than one feature: a method may take that for granted.
        features = (matrix if matrix.shape[1] > 1 else matrix.repeat(1, 2))[:, None, :]
        transforming = sum(member.homogenizer.overrides("transform") for member in pipe.members)
        taps: Any = features if transforming <= 1 else [features] * (transforming + 1)
        return {
            "losses": losses,
            "domains": [f"domain {number}" for number in numbers.tolist()],
            "features": taps,
            "feature_cotangents": taps,
            "targets": torch.zeros(tasks, 1, dtype=torch.int64),
        }

    def exercise(self, pipe: Pipeline, steps: int, start: int = 0) -> list[Tensor]:
        """All that some steps give, the same whenever they are taken from the same state.

        Where the homogenizer acts before rows exist, they are meta-steps of a small network.
        """
        found: list[Tensor] = []
        for step in range(start, start + steps):
            if self.acts_before_rows and self.arena.learners:
                found += self._meta_step(pipe, step)
            else:
                generator = torch.Generator().manual_seed(step)
                rows = torch.randn(4, 12, generator=generator, dtype=torch.float64)
                losses = torch.rand(4, generator=generator, dtype=torch.float64) + 0.5
                direction = self.combine(rows, pipe=pipe, losses=losses)
                assert isinstance(direction, Tensor)
                found.append(direction)
        return found

    def lap(self, pipe: Pipeline, batch: TaskBatch) -> None:
        """One step through all stages as a learner takes it, with no learner: no inner loop, few lines of ours."""
        encoder, head = network()
        names, parameters = zip(*encoder.named_parameters(), strict=True)
        slopes: list[tuple[Tensor, ...]] = []
        taps: list[list[Tensor]] = []
        losses: list[Tensor] = []
        with pipe.attached(encoder):
            for slot, task in enumerate(batch):
                key = TaskKey(slot, task.domain)
                pipe.begin(key, "support")
                encoder(task.support_x)
                pipe.begin(key, "query")
                taps.append(pipe.transform(encoder(task.query_x)[None], [key]))
                losses.append(nn.functional.cross_entropy(head(taps[-1][-1][0]), task.query_y))
                slopes.append(torch.autograd.grad(losses[-1], [*parameters, *taps[-1]]))
        stacked = [torch.stack(parts) for parts in zip(*slopes, strict=True)]
        pipe.homogenize(
            dict(zip(names, stacked, strict=False)), torch.stack(losses).detach(), domains=batch.domains,
            features=[torch.cat(tap).detach() for tap in zip(*taps, strict=True)],
            feature_cotangents=[tap[:, 0] for tap in stacked[len(names) :]], targets=batch.query_y,
        )  # fmt: skip

    def _meta_step(self, pipe: Pipeline, step: int) -> list[Tensor]:
        made, batch = self.arena.learner(self.arena.learners[0], pipe), self.arena.batch(seed=step)
        formed = made.rows(batch)
        direction = pipe.homogenize(
            formed.jacobian, formed.losses, domains=batch.domains, features=formed.features,
            feature_cotangents=formed.feature_cotangents, targets=batch.query_y,
        ).direction  # fmt: skip
        assert isinstance(direction, dict)
        return [formed.losses, *formed.jacobian.values(), *direction.values()]


def _assuming(member: Member, trait: str) -> Member:
    if member.spec is None:
        return member
    spec = dataclasses.replace(member.spec, traits=member.spec.traits | {trait})
    return dataclasses.replace(member, spec=spec)
