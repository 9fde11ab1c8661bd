"""The homogenizer under check: fresh pipelines with it, and steps that run them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradhomog.errors import GradhomogError, PluginRunError, describe_error
from gradhomog.learners.tasks import TaskBatch
from gradhomog.registry import Registry
from gradhomog.registry.options import bind, option_parameters
from gradhomog.registry.specs import HomogenizerSpec
from gradhomog.step.homogenizer import Homogenizer
from gradhomog.step.member import Member
from gradhomog.step.pipelines import Pipeline, pipeline
from gradhomog.step.step import TaskKey
from gradhomog.testing import small_network
from gradhomog.testing.check import NotApplicable
from gradhomog.testing.plugin_subject import PluginSubject
from gradhomog.testing.small_network import InstalledLearners, network

Rows = Tensor | Mapping[str, Tensor]
Direction = Tensor | dict[str, Tensor]
STEPS = 4  # steps of a run that is saved or compared with another run


class HomogenizerSubject(PluginSubject[HomogenizerSpec]):
    """The homogenizer under check, given by name or spec, with its options."""

    kind = "homogenizers"
    spec_type = HomogenizerSpec

    def __init__(self, plugin: Any, registry: Registry | None = None) -> None:
        super().__init__(plugin, registry)
        self.learners = InstalledLearners(self.registry)
        members = [type(homogenizer) for homogenizer in self.pipeline()]
        self.attaches = any(member.overrides("attach") for member in members)
        self.transforms = sum(member.overrides("transform") for member in members)
        self.stateful = any(homogenizer.state_names for homogenizer in self.pipeline())

    @property
    def reads_traces(self) -> bool:
        """True if it declares that it reads the traces of tangent kernels."""
        return any(member.declares_needs and "kernel_traces" in member.needs for member in self.pipeline().members)

    @property
    def acts_before_rows(self) -> bool:
        return self.attaches or self.transforms > 0

    # -- making ------------------------------------------------------------------------------------------------------

    def pipeline(self, nonfinite: Any = "raise", assume: str | None = None, **options: Any) -> Pipeline:
        """Make a fresh pipeline of this homogenizer. With `assume`, the homogenizer claims that trait too."""
        merged = {**self.options, **options}
        if self.info is not None:
            pipe = pipeline([(self.name, merged)], nonfinite=nonfinite, registry=self.registry)
        else:
            pipe = self._pipeline_from_spec(merged, nonfinite)
        if assume is None:
            return pipe
        return Pipeline([_with_claim(member, assume) for member in pipe.members], nonfinite)

    def make_with(self, **options: Any) -> Pipeline:
        return self.pipeline(**options)

    def _pipeline_from_spec(self, options: Mapping[str, Any], nonfinite: Any) -> Pipeline:
        bound = bind(self.spec, self.name, options)
        try:
            homogenizer = self.spec.factory(**bound)
        except GradhomogError:
            raise
        except (Exception, SystemExit) as cause:
            raise PluginRunError(f"{self} could not be made: {describe_error(cause)}.") from cause
        if isinstance(homogenizer, Homogenizer):
            return Pipeline([Member(homogenizer, self.name, options, None, self.spec)], nonfinite)
        if isinstance(homogenizer, Sequence):
            return pipeline(homogenizer, nonfinite=nonfinite, registry=self.registry)
        raise PluginRunError(f"{self} must make a gradhomog.Homogenizer; got {type(homogenizer).__name__}.")

    def has_option(self, name: str) -> bool:
        return name in option_parameters(self.spec)

    def learner_names(self) -> tuple[str, ...]:
        """Return the learners for the check: all if the homogenizer has `attach` or `transform`, else one.

        Rows that do not depend on the homogenizer are covered by the checks of learners.
        """
        names = self.learners.names
        if self.reads_traces:
            raise NotApplicable("it reads traces of tangent kernels, which learners do not supply")
        if not names:
            raise NotApplicable("no installed learner can train on the small network")
        return names if self.acts_before_rows else names[:1]

    # -- steps -------------------------------------------------------------------------------------------------------

    def combine(
        self, rows: Rows, *, pipe: Pipeline | None = None, losses: Tensor | None = None, steps: int = 1,
        order: Tensor | None = None, domains: Sequence[str] | None = None, create_graph: bool = False,
    ) -> Direction:  # fmt: skip
        """Run steps on the same rows, with matching losses, domains and features; return the last direction.

        `order` permutes the other inputs of the tasks; `rows` must be permuted already.
        """
        pipe = pipe or self.pipeline()
        inputs = self.step_inputs(rows, losses, order, domains)
        for _ in range(steps):
            direction = pipe.combine(rows, create_graph=create_graph, **inputs)
        return direction

    def vector(self, rows: Tensor, **options: Any) -> Tensor:
        """Return `combine` of rows in one tensor."""
        direction = self.combine(rows, **options)
        assert isinstance(direction, Tensor)
        return direction

    def step_inputs(
        self, rows: Rows, losses: Tensor | None = None, order: Tensor | None = None,
        domains: Sequence[str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Return all other inputs of a step: one query per task, whose features are the entries of its row.

        The trace of a task's tangent kernel is the squared norm of its row, as for one residual r with the loss r.
        """
        blocks = [rows] if isinstance(rows, Tensor) else list(rows.values())
        matrix = torch.cat([block.reshape(len(block), -1) for block in blocks], dim=1)  # keeps the graph of the rows
        tasks = len(matrix)
        numbers = torch.arange(tasks) if order is None else order
        if losses is None:
            losses = torch.linspace(0.5, 1.5, tasks, dtype=torch.float64)[numbers]
        # At least two features, because a method may rely on that.
        features = (matrix if matrix.shape[1] > 1 else matrix.repeat(1, 2))[:, None, :]
        names = domains or [f"domain {number}" for number in range(tasks)]
        return {
            "losses": losses,
            "domains": [names[number] for number in numbers.tolist()],
            "features": self.at_taps(features),
            "feature_grads": self.at_taps(features),
            "targets": torch.zeros(tasks, 1, dtype=torch.int64),
            "kernel_traces": self._kernel_traces([matrix]),
        }

    def _kernel_traces(self, blocks: Sequence[Tensor]) -> Tensor | None:
        """Return squared norms of rows `[tasks, *shape]`, which keep the graph, if the homogenizer reads traces."""
        if not self.reads_traces:
            return None
        return torch.stack([block.double().flatten(1).square().sum(1) for block in blocks]).sum(0)

    def at_taps(self, features: Tensor) -> Any:
        """Return features in the form of `combine`: one tensor, or a list if there are several `transform` stages."""
        return features if self.transforms <= 1 else [features] * (self.transforms + 1)

    def outputs(self, pipe: Pipeline, steps: int = STEPS, start: int = 0) -> list[Tensor]:
        """Return all results of some steps, which depend only on the state before them.

        If the homogenizer has `attach` or `transform`, the steps train a small network.
        """
        results: list[Tensor] = []
        for number in range(start, start + steps):
            if self.acts_before_rows:
                results += self.encoder_step(pipe, small_network.batch(seed=number))
            else:
                generator = torch.Generator().manual_seed(number)
                rows = torch.randn(4, 12, generator=generator, dtype=torch.float64)
                losses = torch.rand(4, generator=generator, dtype=torch.float64) + 0.5
                results.append(self.vector(rows, pipe=pipe, losses=losses))
        return results

    def encoder_step(self, pipe: Pipeline, batch: TaskBatch) -> list[Tensor]:
        """Run one step through all stages, like a learner without inner loop; return losses, rows and direction."""
        encoder, head = network()
        names, parameters = zip(*encoder.named_parameters(), strict=True)
        gradients: list[tuple[Tensor, ...]] = []
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
                gradients.append(torch.autograd.grad(losses[-1], [*parameters, *taps[-1]]))
        stacked = [torch.stack(parts) for parts in zip(*gradients, strict=True)]
        direction = pipe.combine(
            dict(zip(names, stacked, strict=False)), torch.stack(losses).detach(), domains=batch.domains,
            features=[torch.cat(tap).detach() for tap in zip(*taps, strict=True)],
            feature_grads=[tap[:, 0] for tap in stacked[len(names) :]], targets=batch.query_y,
            kernel_traces=self._kernel_traces(stacked[: len(names)]),
        )  # fmt: skip
        assert isinstance(direction, dict)
        return [*(loss.detach() for loss in losses), *stacked, *direction.values()]

    # -- runs that are saved and continued, for `training_state` -----------------------------------------------------

    def begin(self, seed: int = 0) -> Pipeline:
        return self.pipeline()

    def train(self, run: Pipeline, start: int = 0) -> dict[str, Tensor]:
        return {f"output {index}": value for index, value in enumerate(self.outputs(run, start=start))}

    def save(self, run: Pipeline) -> Any:
        return run.state_dict()

    def load(self, run: Pipeline, state: Any) -> None:
        run.load_state_dict(state)


def _with_claim(member: Member, trait: str) -> Member:
    if member.spec is None:
        return member
    spec = dataclasses.replace(member.spec, traits=member.spec.traits | {trait})
    return dataclasses.replace(member, spec=spec)
