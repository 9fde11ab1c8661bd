"""The run file: read from TOML into typed dataclasses, shortened, and written as TOML; errors contain the key path."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from annotated_types import Ge, Gt, Interval, Le, Lt

from gradhomog.errors import ConfigError, ExpressionError, UnknownPluginError, join_errors
from gradhomog.experiments.run_file import toml
from gradhomog.experiments.run_file.content import check_network, find_problem, problem_table, unused_keys
from gradhomog.experiments.run_file.toml import apply_override, flatten, merged
from gradhomog.experiments.run_file.validation import build
from gradhomog.experiments.runs import SINGLE, Run
from gradhomog.registry import expression, installed
from gradhomog.registry.specs import ProblemSpec

Seed = Annotated[int, Interval(ge=0, lt=2**32)]
"""A seed of `EpisodeStream`."""

TRAINED_GLYPHS = ("latin", "greek", "cyrillic", "mathematics", "arrows", "armenian")

MAX_SEEDS = 1000
"""Maximum number of runs per method; a larger number is probably a seed given as the number of seeds."""

TUNED_STATIC = 'static | static(weights="random", seed=1) | static(weights="random", seed=2)'

FEW_SHOT = ("none", TUNED_STATIC, "pcgrad", "gradnorm(initial_loss=1.609)", "mgda")
"""Methods of a run file that names domains; 1.609 is the log of 5 classes."""

MULTI_TASK = (
    "none",
    SINGLE,
    TUNED_STATIC,
    "gradnorm | gradnorm(alpha=0.5) | gradnorm(alpha=3.0)",
    "pcgrad",
    "mgda",
    "cagrad | cagrad(c=0.2) | cagrad(c=0.8)",
    "nash_mtl",
)
"""Methods of problems whose plugin lists none. Those with an option that papers tune have as many candidates as static
weights."""


def with_baselines(texts: Sequence[str]) -> list[str]:
    """The methods, preceded by the plain learner and tuned static weights if the list lacks them.

    The added static weights have as many candidates as the method with the most candidates, and at least two: equal
    weights, which are the plain learner, and random weights. If no method is tuned, static weights therefore have one
    more candidate than the methods.

    >>> with_baselines(["pcgrad"])
    ['none', 'static | static(weights="random", seed=1)', 'pcgrad']

    Raises:
        ExpressionError: an expression cannot be parsed.
    """
    parsed = {text: expression.parse_alternatives(text) for text in texts}
    missing = [] if [[]] in parsed.values() else ["none"]
    if not any(len(alternatives) > 1 and _is_static(alternatives) for alternatives in parsed.values()):
        count = max([2, *map(len, parsed.values())])
        random_weights = [f'static(weights="random", seed={seed})' for seed in range(1, count)]
        missing.append(" | ".join(["static", *random_weights]))
    return [*missing, *texts]


def _is_static(alternatives: Sequence[Sequence[expression.Member]]) -> bool:
    return all(len(members) == 1 and members[0][0].rpartition(":")[2] == "static" for members in alternatives)


@dataclass(frozen=True)
class Domains:
    """Domains of the training and test tasks: names such as `glyphs:greek`, or paths of images.

    For a domain that is only in `test`, all classes are test classes. For a domain that is also in `train`, only the
    classes of its test split are. Validation tasks come from the validation classes of the domains in `validation`,
    or of the training domains if it is empty.
    """

    train: list[str] = field(default_factory=lambda: [f"glyphs:{name}" for name in TRAINED_GLYPHS])
    test: list[str] = field(default_factory=lambda: ["glyphs:georgian", "glyphs:dingbats", "glyphs:geometric"])
    validation: list[str] = field(default_factory=list)
    setting: Literal["weak", "strong"] = "strong"


@dataclass(frozen=True)
class Episodes:
    """The shape of a task, and the number of tasks per batch."""

    ways: Annotated[int, Ge(2)] = 5
    shots: Annotated[int, Ge(1)] = 1
    queries: Annotated[int, Ge(1)] = 5
    tasks: Annotated[int, Ge(1)] = 4


@dataclass(frozen=True)
class NetworkSettings:
    """The network, a plugin: of those of gradhomog, `mlp` for vectors, the others for images.

    `width` is the number of filters of the first block (64 in the papers) or of hidden units of mlp (40). With
    `channels = 0`, the number of channels is that of the domains.
    """

    name: str = "conv4"
    width: Annotated[int, Ge(1)] = 16
    size: Annotated[int, Ge(16)] = 28
    channels: Literal[0, 1, 3] = 0


@dataclass(frozen=True)
class Train:
    """Meta-training.

    The settings of the inner loop are passed to learners that have these options; options in the expression of the
    learner override them. The `ensemble` states with the best validation scores are tested, and their outputs averaged.
    `augmentation = "standard"` crops, jitters and flips training images; see `data.augmentation`. The outer optimizer
    is Adam, SOAP (extra `soap`), both with `beta1`, or SGD without momentum; its rate is `outer_lr` times `lr_decay` to
    the number of completed periods of `lr_decay_every` steps. With `metric = "optimizer"`, rows are homogenized in the
    metric of its step.
    """

    steps: Annotated[int, Ge(1)] = 250
    inner: str = "sgd"
    inner_steps: Annotated[int, Ge(0)] = 3
    inner_lr: Annotated[float, Gt(0)] = 0.05
    outer: Literal["adam", "soap", "sgd"] = "adam"
    outer_lr: Annotated[float, Gt(0)] = 0.002
    lr_decay: Annotated[float, Gt(0), Le(1)] = 1.0
    lr_decay_every: Annotated[int, Ge(1)] = 1000
    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    validate_every: Annotated[int, Ge(1)] = 50
    validation_episodes: Annotated[int, Ge(1)] = 60
    log_every: Annotated[int, Ge(1)] = 5
    checkpoint_every: Annotated[int, Ge(1)] = 25
    ensemble: Annotated[int, Ge(1)] = 1
    augmentation: Literal["none", "standard"] = "none"
    nonfinite: Literal["raise", "drop"] = "raise"
    metric: Literal["euclidean", "optimizer"] = "euclidean"


@dataclass(frozen=True)
class Test:
    """Meta-test: the same tasks for every run, with `queries` queries per class; 0: as many as in training."""

    episodes: Annotated[int, Ge(2)] = 300
    queries: Annotated[int, Ge(0)] = 0


@dataclass(frozen=True)
class Config:
    """A comparison.

    `threads` is the number of threads per run, so results do not depend on the number of simultaneous runs.
    `observers` are names of plugins that receive the records of each run: `["csv", "tensorboard"]`. `plugins` pins the
    distribution and version of plugins: `["gradhomog:pcgrad==0.2.0"]`; `compare` adds missing pins. Neither
    `observers` nor `plugins` affects the results.

    The defaults of this class suit images; `load` has other defaults for a configuration that names no domains.
    `problem` has the name and the options of a multi-task problem, a plugin. With a problem, learners, domains and
    episodes are `unused_keys`: these keys are neither accepted in a run file nor written to one.
    """

    learner: str | list[str] = "maml"
    homogenizers: list[str] = field(default_factory=lambda: list(FEW_SHOT))
    seeds: int | list[Seed] = 3
    threads: Annotated[int, Ge(1), Le(1024)] = 1
    device: str = "cpu"
    observers: list[str] = field(default_factory=list)
    plugins: list[str] = field(default_factory=list)
    domains: Domains = field(default_factory=Domains)
    episodes: Episodes = field(default_factory=Episodes)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    train: Train = field(default_factory=Train)
    test: Test = field(default_factory=Test)
    problem: dict[str, Any] | None = None

    @property
    def learners(self) -> list[str]:
        """The learners that are trained; for a multi-task problem, its network, which has the name of the problem."""
        if self.problem is not None:
            return [self.problem["name"]]
        return [self.learner] if isinstance(self.learner, str) else list(self.learner)

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(self.seeds)

    @property
    def unused_keys(self) -> tuple[str, ...]:
        """Key paths that are not used with this problem, or without a problem."""
        if self.problem is None:
            return ("problem",)
        return unused_keys(find_problem(self.problem["name"]))

    def to_dict(self) -> dict[str, Any]:
        content = dataclasses.asdict(self)
        for path in self.unused_keys:
            *tables, last = path.split(".")
            table = content
            for name in tables:
                table = table[name]
            del table[last]
        return content

    def result_settings(self) -> dict[str, Any]:
        """The settings that determine the results: all except `observers`, `plugins`, and the folders of data.

        Data are identified by their content, see `Plan.check_fingerprints`; they may be moved.
        """
        content = {key: value for key, value in self.to_dict().items() if key not in ("observers", "plugins")}
        if self.problem is None:
            content["domains"] |= {
                key: [_without_folder(text) for text in content["domains"][key]]
                for key in ("train", "validation", "test")
            }
        elif "data" in content["problem"]:
            content["problem"]["data"] = _without_folder(content["problem"]["data"])
        return content

    def with_baselines(self) -> Config:
        """For a multi-task problem, the same comparison including the plain learner and tuned static weights.

        Raises:
            ConfigError: a text of `homogenizers` does not parse.
        """
        if self.problem is None:
            return self
        try:
            return dataclasses.replace(self, homogenizers=with_baselines(self.homogenizers))
        except ExpressionError as cause:
            raise ConfigError(f"`homogenizers`: {cause}") from cause

    def for_run(self, run: Run) -> Config:
        """The configuration of a single run."""
        changes: dict[str, Any] = {"homogenizers": [run.homogenizers], "seeds": [run.seed]}
        if self.problem is None:
            changes["learner"] = run.learner
        return dataclasses.replace(self, **changes)

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())

    @property
    def digest(self) -> str:
        """A short hash of all settings that determine the results."""
        content = {**self.result_settings(), "seeds": self.seed_list, "learner": self.learners}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _without_folder(text: str) -> str:
    """Return a domain's text with the last component of its path only.

    >>> _without_folder("images:/data/birds.npz(size=32)"), _without_folder("glyphs:greek")
    ('birds.npz(size=32)', 'glyphs:greek')
    """
    path, bracket, options = text.partition("(")
    return path.removeprefix("images:").replace("\\", "/").rstrip("/").rpartition("/")[2] + bracket + options


def load(
    path: str | Path | None = None, overrides: Sequence[str] = (), defaults: Mapping[str, Any] | None = None
) -> Config:
    """Read a run file and apply `--set key.path=value` overrides; omitted keys have defaults.

    The defaults are those of `Config`, which suit images; without `domains.train`, `domains.test` and `problem`, they
    are those of `first_comparison.toml`. `defaults` replaces defaults of other keys and of the options of the problem.

    Raises:
        ConfigError: the file is missing or is not valid TOML, a key is unknown, or a value has the wrong type or is out
            of range. The message contains the key path, and suggestions for unknown keys. UnknownPluginError: a problem
            or network is unknown, and `path` is None.
    """
    content = {} if path is None else toml.read(Path(path))
    for override in overrides:
        apply_override(content, override)
    if defaults and "problem" in defaults:
        content = merged({"problem": defaults["problem"]}, content)
    try:
        spec = _build_problem(content)
        other_defaults: dict[str, Any] = {}
        if spec:
            methods = [text for text in MULTI_TASK if spec.single_task or text != SINGLE]
            defaults_of_problem = spec.defaults(content["problem"]) if callable(spec.defaults) else spec.defaults
            other_defaults = {"homogenizers": methods, **defaults_of_problem}
        elif not {"domains.train", "domains.test"} & flatten(content).keys():
            other_defaults = toml.read(Path(__file__).with_name("first_comparison.toml"))
        content = merged(other_defaults, defaults or {}, content)
        config = build(Config, content)
        _check(config, spec)
    except (ConfigError, UnknownPluginError) as error:
        if path is None:
            raise
        raise ConfigError(f"{path}: {error}") from error
    return config


def _build_problem(content: dict[str, Any]) -> ProblemSpec | None:
    """Return the problem that `content` names, and complete its table in `content` by the defaults of its options.

    Raises:
        ConfigError: the problem is unknown, its options are invalid, or `content` has keys that it does not use.
    """
    if "problem" not in content:
        return None
    table = content["problem"]
    if not isinstance(table, Mapping):
        example = installed().names("problems")[0]
        raise ConfigError(f'`problem` must be a table, such as problem.name = "{example}"; got {table!r}.')
    spec = find_problem(table.get("name"))
    keys = flatten(content)
    for path in unused_keys(spec):
        if any(f"{key}.".startswith(f"{path}.") for key in keys):
            raise ConfigError(f"`{path}` is not used with `problem.name` {table['name']!r}. Remove this key.")
    content["problem"] = problem_table(spec, table)
    return spec


def _check(config: Config, problem: ProblemSpec | None) -> None:
    # Checked first: `seed_list` would create a list of this length.
    if (count := config.seeds if isinstance(config.seeds, int) else len(config.seeds)) > MAX_SEEDS:
        hint = f" For the single seed {count} write seeds=[{count}]." if isinstance(config.seeds, int) else ""
        raise ConfigError(
            f"`seeds` must be at most {MAX_SEEDS}: it is the number of runs per method; got {count}.{hint}"
        )
    if problem is not None and problem.deterministic and len(config.seed_list) > 1:
        raise ConfigError(
            f"`seeds` must be one seed: nothing in the problem is random, so all seeds give the same result; "
            f"got {config.seed_list}."
        )
    if "network" not in config.unused_keys:
        check_network(config.network.name)
    errors = []
    for path, values in (
        ("learner", config.learners),
        ("homogenizers", config.homogenizers),
        ("domains.train", config.domains.train),
        ("domains.test", config.domains.test),
        ("domains.validation", config.domains.validation),
        ("seeds", config.seed_list),
        ("observers", config.observers),
    ):
        if not values and path not in ("observers", "domains.validation"):
            errors.append(f"`{path}` must have at least one entry; got none.")
        if len(set(values)) < len(values):
            errors.append(f"`{path}` must not contain duplicates; got {values}.")
    if errors:
        raise ConfigError(join_errors(errors))


REDUCTION = 10
"""Factor by which training steps and test tasks are reduced."""


def shorten(config: Config) -> Config:
    """Return the configuration with its first seed only, one tenth of the training steps and of the test tasks."""
    steps = max(2, config.train.steps // REDUCTION)
    every = min(config.train.validate_every, steps)
    episodes = max(2, config.train.validation_episodes // REDUCTION)
    train = replace(config.train, steps=steps, validate_every=every, validation_episodes=episodes)
    test = replace(config.test, episodes=max(2, config.test.episodes // REDUCTION))
    return replace(config, seeds=config.seed_list[:1], train=train, test=test)
