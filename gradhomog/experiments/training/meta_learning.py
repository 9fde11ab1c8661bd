"""The trainable of meta-learning runs: a learner with its streams of episodes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradhomog.errors import ConfigError
from gradhomog.experiments.environment import device
from gradhomog.experiments.episodes.sampler import EpisodeStream
from gradhomog.experiments.episodes.splits import Streams, normalize_scores, streams
from gradhomog.experiments.run_file import content
from gradhomog.experiments.run_file.schema import Config
from gradhomog.experiments.runs import Run
from gradhomog.experiments.training.saliency import write_saliency_maps
from gradhomog.learners.ensemble import Ensemble
from gradhomog.learners.learner import Learner
from gradhomog.learners.learner_rows import FIRST_BATCH, independent_numbers, plain_rows
from gradhomog.learners.results import Evaluation
from gradhomog.problems import BatchRows
from gradhomog.ranks.communicator import Ranks
from gradhomog.registry import expression, installed, options
from gradhomog.step.pipelines import pipeline
from gradhomog.step.reports import StageReport, StepReport


def make_learner(config: Config, run: Run, source: Streams) -> Learner:
    """Return the learner of a run, initialized from the run's seed. All methods get the same initialization."""
    selector, explicit = expression.parse_one(run.learner)
    _, spec = installed().load("learners", selector)
    chosen = {**_default_options(config, source, set(options.option_parameters(spec)), run.learner), **explicit}
    torch.manual_seed(run.seed)
    encoder, head = content.build_network(
        config.network.name, source.train.input_shape, source.outputs, config.network.width,
        flatten=chosen.get("maps") is not True,
    )  # fmt: skip
    torch_device = device(config.device)
    pipe = pipeline(run.homogenizers, nonfinite=config.train.nonfinite)
    learner: Learner = installed().make(
        "learners", selector, chosen, encoder.to(torch_device), head.to(torch_device), homogenizers=pipe
    )[2]
    return learner


def _default_options(config: Config, source: Streams, accepted: set[str], learner: str) -> dict[str, Any]:
    """Return values from the configuration and the data for those options that the learner accepts."""
    train = config.train
    values: dict[str, Any] = {
        "inner": train.inner,
        "inner_steps": train.inner_steps,
        "inner_lr": train.inner_lr,
        "input_shape": list(source.train.input_shape),
        "maps": content.has_maps(config.network.name),  # outputs are feature maps, not vectors
        "classes": source.train.class_count or None,  # number of training classes
    }
    if "classes" in accepted and source.train.outputs is None and values["classes"] is None:
        names = ", ".join(domain.name for domain in source.train.domains)
        raise ConfigError(
            f"{learner} is trained to classify all training classes, but `domains.train` do not declare their classes: "
            f"{names}. A domain declares them by `Domain.classes` and `Task.classes`."
        )
    return {name: value for name, value in values.items() if name in accepted and value is not None}


class MetaLearning:
    """A learner, trained on batches of episodes; validation and test use fixed lists of episodes."""

    samples_tasks = True
    state_selection = "best"

    def __init__(self, config: Config, run: Run) -> None:
        self.config = config
        self.source = streams(config, run.seed)
        self.learner = make_learner(config, run, self.source)
        self.metric = self.source.metric

    def parameters(self) -> list[torch.nn.Parameter]:
        return self.learner.parameters()

    def step(self, index: int, optimizer: torch.optim.Optimizer, inspect: bool) -> StepReport:
        batch, ranks = self.source.train.batch(index).to(self.config.device), Ranks("tasks")
        metric = optimizer if self.config.train.metric == "optimizer" else None
        if ranks.size == 1:
            return self.learner.step(batch, optimizer, metric=metric)
        first, last = (len(batch) * (dist.get_rank() + end) // ranks.size for end in (0, 1))
        return self.learner.step(batch.select(range(first, last)), optimizer, group=ranks, metric=metric)

    def probe(self, index: int) -> list[StageReport]:
        if not any(member.before_rows for member in self.learner.homogenizers.members):
            return []
        return self.learner.probe(self.source.train.batch(index).to(self.config.device))

    def rows(self, index: int) -> BatchRows:
        batch = self.source.train.batch(FIRST_BATCH + index)
        with independent_numbers(self.learner, index):
            return BatchRows(plain_rows(self.learner, batch), batch.domains)

    def validate(self) -> Evaluation:
        return self._evaluate(self.learner, self.source.validation, self.config.train.validation_episodes)

    def test(self, states: Sequence[Mapping[str, Any]]) -> Evaluation:
        tested = self.learner if len(states) == 1 else Ensemble(self.learner, states)
        return self._evaluate(tested, self.source.test, self.config.test.episodes)

    def _evaluate(self, tested: Learner | Ensemble, stream: EpisodeStream, episodes: int) -> Evaluation:
        result = tested.evaluate(stream.task(index).to(self.config.device) for index in range(episodes))
        return normalize_scores(result, stream.domains) if self.metric == "nmse" else result

    def write_artifacts(self, folder: Path) -> dict[str, Any]:
        write_saliency_maps(self.learner, self.source.test, self.config.device, folder)
        return {}

    def metadata(self) -> dict[str, Any]:
        return {"fingerprints": self.source.fingerprints}

    def state_dict(self) -> dict[str, Any]:
        return self.learner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state)
