"""The run file: TOML in, typed dataclasses, TOML out; errors give the key path."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tomli_w

from gradhomog.errors import ConfigError, ExpressionError
from gradhomog.experiments import problems
from gradhomog.experiments.config import first_comparison, suites, toml
from gradhomog.experiments.config.validation import at_least, build
from gradhomog.experiments.problems import ProblemSpec
from gradhomog.faults import join_faults

SEEDS = 2**32
"""Seeds are below it, as those of `episodes.EpisodeStream` are."""


MAX_SEEDS = 1000
"""Runs of each method; more are a seed that was given as the number of seeds."""


@dataclass(frozen=True)
class Domains:
    """Where tasks come from: names such as `glyphs:greek`, or paths of images.

    A domain that is only in `test` is tested on all its classes; one that is also in `train` on its test classes.
    Validation tasks come from the validation classes of the training domains.
    """

    train: list[str] = field(
        default_factory=lambda: [
            "glyphs:latin",
            "glyphs:greek",
            "glyphs:cyrillic",
            "glyphs:mathematics",
            "glyphs:arrows",
            "glyphs:armenian",
        ]
    )
    test: list[str] = field(default_factory=lambda: ["glyphs:georgian", "glyphs:dingbats", "glyphs:geometric"])
    setting: Literal["weak", "strong"] = "strong"


@dataclass(frozen=True)
class Episodes:
    """The shape of a task, and how many make a batch."""

    ways: int = at_least(2, 5)
    shots: int = at_least(1, 1)
    queries: int = at_least(1, 5)
    tasks: int = at_least(1, 4)


@dataclass(frozen=True)
class Network:
    """`mlp` for vectors, the others for images. `channels` 0 takes what the domains have.

    `width` counts the filters of the first block (64 in the papers) or the hidden units of mlp (40).
    """

    name: Literal["conv4", "conv6", "resnet10", "resnet12", "resnet18", "mlp"] = "conv4"
    width: int = at_least(1, 16)
    size: int = at_least(16, 28)
    channels: Literal[0, 1, 3] = 0


@dataclass(frozen=True)
class Train:
    """Meta-training. Inner settings are handed to learners that have them; a learner's own options win.

    The best `ensemble` states by validation are tested, with the mean of their outputs.
    """

    steps: int = at_least(1, 250)
    inner: str = "sgd"
    inner_steps: int = at_least(0, 3)
    inner_lr: float = at_least(0, 0.05, exclusive=True)
    outer_lr: float = at_least(0, 0.002, exclusive=True)
    validate_every: int = at_least(1, 50)
    validation_episodes: int = at_least(1, 60)
    log_every: int = at_least(1, 5)
    checkpoint_every: int = at_least(1, 25)
    ensemble: int = at_least(1, 1)
    nonfinite: Literal["raise", "drop"] = "raise"


@dataclass(frozen=True)
class Test:
    """Meta-test: the same tasks for every run."""

    episodes: int = at_least(2, 300)


@dataclass(frozen=True)
class Config:
    """A comparison. `threads` is per run, so that results do not depend on how many runs are made at a time.

    `observers` are called with the records of each run, by name: `["csv", "tensorboard"]`. `plugins` pins where names
    come from, `["gradhomog:pcgrad==0.2.0"]`; `compare` completes it. Neither decides the results.

    Defaults are those for images; `load` has others for a configuration that names no domains.
    With a multi-task `problem`, the options of one of `experiments.problems`, learners, domains and episodes mean
    nothing: what is `unused` is neither accepted from a run file nor written to one.
    """

    learner: str | list[str] = "maml"
    homogenizers: list[str] = field(default_factory=lambda: suites.members("few_shot"))
    seeds: int | list[int] = 3
    threads: int = at_least(1, 1)
    device: str = "cpu"
    observers: list[str] = field(default_factory=list)
    plugins: list[str] = field(default_factory=list)
    domains: Domains = field(default_factory=Domains)
    episodes: Episodes = field(default_factory=Episodes)
    network: Network = field(default_factory=Network)
    train: Train = field(default_factory=Train)
    test: Test = field(default_factory=Test)
    problem: problems.Options | None = None

    @property
    def learners(self) -> list[str]:
        """What is trained: learners, or the network of the problem, which is called as the problem is."""
        if self.problem is not None:
            return [self.problem.name]
        return [self.learner] if isinstance(self.learner, str) else list(self.learner)

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(self.seeds)

    @property
    def unused(self) -> tuple[str, ...]:
        """Key paths that mean nothing with this problem, or without one."""
        return ("problem",) if self.problem is None else problems.find(self.problem.name).unused

    def to_dict(self) -> dict[str, Any]:
        content = dataclasses.asdict(self)
        if self.problem is not None:
            content["problem"] = {"name": self.problem.name, **content["problem"]}  # the name first
        for path in self.unused:
            *tables, last = path.split(".")
            table = content
            for name in tables:
                table = table[name]
            del table[last]
        return content

    def decisive(self) -> dict[str, Any]:
        """The keys that decide the results, without `observers` and `plugins`."""
        return {key: value for key, value in self.to_dict().items() if key not in ("observers", "plugins")}

    def with_baselines(self) -> Config:
        """Of a multi-task problem, the same comparison with the plain learner and tuned static weights in it.

        Raises:
            ConfigError: a text of `homogenizers` does not parse.
        """
        if self.problem is None:
            return self
        try:
            return dataclasses.replace(self, homogenizers=suites.with_baselines(self.homogenizers))
        except ExpressionError as cause:
            raise ConfigError(f"`homogenizers`: {cause}") from cause

    def of_run(self, learner: str, homogenizers: str, seed: int) -> Config:
        """The configuration of one run: a run file of its own."""
        one: dict[str, Any] = {"homogenizers": [homogenizers], "seeds": [seed]}
        if self.problem is None:
            one["learner"] = learner
        return dataclasses.replace(self, **one)

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())

    @property
    def digest(self) -> str:
        """A short hash of all that decides the results."""
        content = {**self.decisive(), "seeds": self.seed_list, "learner": self.learners}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def load(
    path: str | Path | None = None, overrides: Sequence[str] = (), defaults: Mapping[str, Any] | None = None
) -> Config:
    """Read a run file and apply `--set key.path=value` overrides; what is left out has a default.

    What is left out has the defaults of `Config`, which suit images; without `domains.train`, `domains.test` and
    `problem`, those of `first_comparison`. `defaults` replaces defaults of top-level keys. A suite that `homogenizers`
    names is listed in full.

    Raises:
        ConfigError: the file is missing or no TOML; a key is unknown (with a suggestion), a value of the wrong type or
            out of range. The message gives the key path.
    """
    content = {} if path is None else toml.read(Path(path))
    for override in overrides:
        _override(content, override)
    try:
        spec = _problem(content)
        content = _under(content, _under(defaults or {}, spec.defaults if spec else first_comparison.defaults(content)))
        if isinstance(suite := content.get("homogenizers"), str):
            content["homogenizers"] = suites.members(suite)
        config = build(Config, content, special=("problem",))
        _check(config)
    except ConfigError as error:
        if path is None:
            raise
        raise ConfigError(f"{path}: {error}") from error
    return config


def _override(content: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set needs key.path=value; got {text!r}.")
    try:
        parsed = toml.parse(f"value = {value}")["value"]
    except toml.SyntaxFault:
        parsed = value.strip()  # a bare word is a text: --set learner=fomaml
    except ConfigError as error:
        raise ConfigError(f"--set {key.strip()}: {error}") from error
    *path, last = key.strip().split(".")
    if len(path) > toml.MAX_DEPTH:
        raise ConfigError(f"--set {path[0]}.{path[1]}…: {toml.TOO_DEEP}")
    table = content
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {key.strip()}: `{part}` is not a table.")
    table[last] = parsed


def _problem(content: dict[str, Any]) -> ProblemSpec | None:
    """The problem that `content` names, whose table becomes typed options; keys that mean nothing with it are refused.

    Raises:
        ConfigError.
    """
    if "problem" not in content:
        return None
    table = content["problem"]
    if not isinstance(table, Mapping):
        raise ConfigError(f'`problem` must be a table, such as problem.name = "{problems.NAMES[0]}"; got {table!r}.')
    spec = problems.find(table.get("name"))
    for path in spec.unused:
        *names, last = path.split(".")
        inner: Any = content
        for name in names:
            inner = inner.get(name, {}) if isinstance(inner, Mapping) else {}
        if isinstance(inner, Mapping) and last in inner:
            raise ConfigError(f"`{path}` means nothing with `problem.name` {spec.name!r}; leave it out.")
    content["problem"] = build(spec.options, table, "problem.")
    return spec


def _under(content: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The content, with defaults for what it leaves out, tables included; neither is changed."""
    merged = dict(content)
    for key, value in defaults.items():
        if isinstance(value, Mapping) and isinstance(inner := content.get(key, {}), Mapping):
            merged[key] = _under(inner, value)
        else:
            merged.setdefault(key, value)
    return merged


def _check(config: Config) -> None:
    # Before the list of the seeds is made.
    if (count := config.seeds if isinstance(config.seeds, int) else len(config.seeds)) > MAX_SEEDS:
        hint = f" For the single seed {count} write seeds=[{count}]." if isinstance(config.seeds, int) else ""
        raise ConfigError(f"`seeds` must be at most {MAX_SEEDS}: it counts the runs of each method; got {count}.{hint}")
    faults = []
    for path, values in (
        ("learner", config.learners),
        ("homogenizers", config.homogenizers),
        ("domains.train", config.domains.train),
        ("domains.test", config.domains.test),
        ("seeds", config.seed_list),
        ("observers", config.observers),
    ):
        if not values and path != "observers":
            faults.append(f"`{path}` must name at least one; got none.")
        if len(set(values)) < len(values):
            faults.append(f"`{path}` must not name one twice; got {values}.")
    if config.threads > 1024:
        faults.append(f"`threads` must be at most 1024; got {config.threads}.")
    faults += [
        f"`seeds` must be from 0 to {SEEDS - 1}; got {seed}." for seed in config.seed_list if not 0 <= seed < SEEDS
    ]
    if faults:
        raise ConfigError(join_faults(faults))
