"""Reptile: move the initialisation towards where the inner loop of each task ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gradhomog import LearnerSpec, OptionError, Task, TaskBatch, TaskRow, hookimpl
from gradhomog_adapters._episodic.engine import Autocast, Compile, Engine
from gradhomog_adapters._episodic.episode import Episode
from gradhomog_adapters._episodic.learner import Episodic
from gradhomog_adapters._episodic.network import Parameters, choose, constants
from gradhomog_adapters._episodic.query import query_outputs
from gradhomog_adapters._inner_loop.optimizer import Descent, Inner, resolve
from gradhomog_adapters._inner_loop.steps import check_steps
from gradhomog_adapters._inner_loop.support import divided, support_loss
from gradhomog_adapters._network.norm import Norm
from gradhomog_adapters._reptile.kept_state import KeptState
from gradhomog_adapters._reptile.minibatches import Minibatches

On = Literal["support", "all"]


class Reptile(Episodic):
    """Learns an initialisation θ that is near each task's adapted parameters.

    θ_i⁰ = θ,  θ_i^{k+1} = θ_i^k − α ∇L(θ_i^k; minibatch k)  (or any other TorchOpt transformation)
    row_i = (θ − θ_i^K) / (α K), the mean of the K gradients for gradient descent; 0 for K = 0

    Args:
        encoder, head, homogenizers, loss: see `Learner`.
        inner: as of `MAML`: an optimizer by name, a TorchOpt transformation or a function that makes one. As published:
            `torchopt.adam(lr=1e-3, betas=(0.0, 0.999))` with `keep_state`.
        inner_lr: α > 0, used when `inner` is a name.
        inner_steps: K ≥ 0 while training.
        test_steps: K at meta-test; as `inner_steps` by default (published: 50).
        scale: what takes the place of α in the row, > 0; `inner_lr` by default. It must be given where `inner` is an
            object, whose rate is not known. Under Adam and its kin a row is in units of the nominal rate, and its
            entries lie about within ±1. `scale=1/inner_steps` gives plain displacements: an outer SGD of rate ε is then
            the published θ + ε · mean(θ_i^K − θ).
        adapt: glob pattern, or several, over the parameter names that the inner loop changes. The rows of others are
            zero: nothing moves them.
        on: what inner steps run on: `"support"`, or `"all"`, the support and query set together, as published
            (training tasks need no query set there). The reported loss is then one of training. At meta-test always
            the support set.
        inner_batch: examples in a minibatch, ≥ 1 (published: 10); all by default. Shuffled, cut and shuffled again; the
            same positions for all tasks of a meta-step, so both engines do the same. At meta-test too.
        seed: ≥ 0, of a generator of minibatches of the learner's own.
        keep_state: the inner optimizer goes on from task to task, as published, in place of a fresh state for each.
            Rows then depend on the order of tasks and on the steps before. One task after the other; saved with the
            learner; advanced by `step`, not by `rows`. A task at meta-test begins with the state that training has
            reached, and leaves it as it is.
        norm: what batch normalization normalizes with, as of `MAML`; within the inner loop with each minibatch's own.
        engine, compile, autocast: as of `MAML`: one task after the other or all at once, compiled, in bfloat16.

    The row is no derivative of the query loss. Query loss, outputs, features and their cotangents, which some
    homogenizers need, come from one more forward pass at θ_i^K, whose backward pass ends at the features: a `transform`
    learns, but changes no row of this learner. In low precision, a row loses the digits that θ and θ_i^K share.

    Cost per task: K + 1 forward and K backward passes, and no graph of more than one step.

    Source: Nichol et al. 2018, arXiv 1803.02999, algorithm 2 (batched), and the gradient (θ − θ_i^K)/α of section 3,
    which is given to any outer optimizer.

    Deviations: (1) rows are divided by K too, so that they have a gradient's size, whatever K is; (2) no linear decay
    of the outer rate, which is the outer optimizer's; (3) the authors' code draws other minibatches for each task, and
    smaller ones at meta-test; (4) there, a task that ends in NaN spoils the kept state; here one of which
    anything is not finite leaves no trace.

    >>> import torch
    >>> from gradhomog import TaskBatch
    >>> _ = torch.manual_seed(0)
    >>> learner = Reptile(torch.nn.Linear(1, 8), torch.nn.Linear(8, 1), inner_steps=3, inner_batch=2)
    >>> x = torch.linspace(-1, 1, 5)[:, None].repeat(3, 1, 1)
    >>> report = learner.step(TaskBatch(x, torch.sin(x), x, torch.sin(x)), torch.optim.SGD(learner.parameters(), 0.1))
    >>> tuple(report.cosines.shape)
    (3, 3)
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        homogenizers: Any = None,
        *,
        inner: Inner = "sgd",
        inner_lr: float = 0.01,
        inner_steps: int = 5,
        test_steps: int | None = None,
        scale: float | None = None,
        adapt: str | Sequence[str] = "*",
        on: On = "support",
        inner_batch: int | None = None,
        seed: int = 0,
        keep_state: bool = False,
        norm: Norm = "batch",
        engine: Engine = "auto",
        compile: Compile = False,
        autocast: Autocast = None,
        loss: Any = None,
    ) -> None:
        super().__init__(encoder, head, homogenizers, loss, norm, engine, compile, autocast)
        self.inner_steps, self.test_steps = check_steps(inner_steps, test_steps)
        self._make_inner = resolve(inner, inner_lr)
        self.scale = _scale(scale, inner, inner_lr)
        self._adapted = choose(list(self.network.parameters()), adapt, "adapt")
        if on not in ("support", "all"):
            raise OptionError(f"`on` must be 'support' or 'all'; got {on!r}.")
        self.on = on
        self._minibatches = None if inner_batch is None else Minibatches(inner_batch, seed)
        if self._minibatches is not None:
            self.learn("minibatches", self._minibatches)
        self._kept: KeptState | None = None
        if keep_state:
            self.loop_only("`keep_state` takes")
            start = {name: self.network.parameters()[name] for name in self._adapted}
            self._kept = KeptState(self._make_inner, start)
            self.learn("inner_state", self._kept)
        self._positions: Tensor | None = None

    def batch_row(self, batch: TaskBatch) -> TaskRow | None:
        if self._kept is not None:
            self._kept.restart()
        self._draw(batch.support_x.shape[1], batch.query_x.shape[1], batch.support_x.device)
        return super().batch_row(batch)

    def task_row(self, task: Task, key: Any) -> TaskRow:
        self._draw(len(task.support_x), len(task.query_x), task.support_x.device)
        return super().task_row(task, key)

    def on_step_end(self) -> None:
        if self._minibatches is not None:
            self._minibatches.on_step_end()
        if self._kept is not None:
            self._kept.after_step()

    def row(self, meta: Parameters, episode: Episode) -> TaskRow:
        assert episode.query_y is not None
        targets, x, y = episode.query_y, episode.support_x, episode.support_y
        if self.on == "all":
            x, y = torch.cat([x, episode.query_x]), torch.cat([y, targets])
        kept = None if self._kept is None else self._kept.running
        descent = self._descend(meta, episode, x, y, self.inner_steps, self._positions, kept)
        point = constants({**meta, **descent.parameters})
        statistics = self.statistics(point, episode)
        features = self.encode(point, episode, statistics)

        def score(_: tuple[()], transformed: list[Tensor]) -> tuple[Tensor, Tensor]:
            outputs = self.classify(point, episode, statistics, transformed[-1])
            return self.loss(outputs, targets), outputs

        # By the features alone: the row is no derivative, and so the encoder needs no backward pass.
        at = episode.calculus.leaf({"features": features})
        found = episode.calculus.row(lambda at: ((), [at["features"]]), score, at, episode.transform)
        length = self.scale * max(self.inner_steps, 1)
        moved = {name: (meta[name].detach() - point[name]) / length for name in descent.parameters}
        if self._kept is not None:
            self._kept.after_task(descent.state, [found.loss, *moved.values()])
        found.gradients = {name: moved.get(name) for name in meta}
        return found

    def outputs(self, meta: Parameters, episode: Episode) -> Tensor:
        x, y, positions = episode.support_x, episode.support_y, None
        if self._minibatches is not None:
            positions = self._minibatches.at_meta_test(len(x), self.test_steps)
        with torch.enable_grad():  # the inner loop differentiates, whatever the caller's mode is
            kept = None if self._kept is None else self._kept.committed
            descent = self._descend(meta, episode, x, y, self.test_steps, positions, kept)
        return query_outputs(self, episode, constants({**meta, **descent.parameters}))

    def _descend(
        self, meta: Parameters, episode: Episode, x: Tensor, y: Tensor, steps: int, positions: Tensor | None,
        kept: Callable[[dict[str, Tensor]], Any] | None,
    ) -> Descent:  # fmt: skip
        """Where some inner steps on examples lead, and the optimizer's state there."""
        start, others = divided(constants(meta), self._adapted)
        descent = Descent.start(self._make_inner(), start)
        if kept is not None:
            descent = Descent(descent.transformation, start, kept(start))

        episode.begin("support")
        loss = support_loss(self, episode, others, examples=(x, y))
        for step in range(steps if start else 0):
            if positions is not None:
                if step:  # other inputs: what is drawn for them once is drawn anew
                    episode.begin("support")
                drawn = (x[positions[step]], y[positions[step]])
                loss = support_loss(self, episode, others, examples=drawn)
            descent = descent.at(episode.calculus.leaf(descent.parameters))
            descent = descent.step(episode.calculus.gradient(loss, descent.parameters, False), False)
        return descent

    def _draw(self, support: int, queries: int, device: torch.device) -> None:
        """The step's minibatches, before an engine runs: within `vmap` nothing can be drawn."""
        if self._minibatches is not None:
            examples = support + queries if self.on == "all" else support
            drawn = self._minibatches.while_training(examples, self.inner_steps)
            self._positions = None if drawn is None else drawn.to(device)


def _scale(scale: float | None, inner: Inner, inner_lr: float) -> float:
    if scale is None and not isinstance(inner, str):
        raise OptionError(
            "`scale` must be given where `inner` is an object: rows are displacements divided by the inner rate, which "
            "it does not tell. Give the rate that it was made with."
        )
    found = inner_lr if scale is None else scale
    if not 0 < found < math.inf:
        raise OptionError(f"`scale` must be positive and finite; got {scale!r}.")
    return found


@hookimpl
def gradhomog_learner() -> LearnerSpec:
    return LearnerSpec(
        factory=Reptile,
        summary="moves the initialisation towards the parameters that each task is adapted to",
        reference="Nichol et al. 2018, arXiv 1803.02999",
    )
