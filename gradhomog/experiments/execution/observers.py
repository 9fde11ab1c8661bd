"""The observers of a run, created from its configuration. An observer that raises is reported once and removed."""

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradhomog.errors import ConfigError, GradhomogError, describe_error, join_errors
from gradhomog.experiments.run_file.schema import Config
from gradhomog.registry import PluginInfo, expression, installed
from gradhomog.registry.options import validate_options
from gradhomog.registry.specs import Observer


def check(config: Config) -> None:
    """Load the observers of a configuration and validate their options, without creating them.

    Raises:
        ConfigError: names or options are invalid, or a package is missing; lists all of them.
    """
    errors = []
    for text in config.observers:
        try:
            selector, options = expression.parse_one(text)
            info, spec = installed().load("observers", selector)
            validate_options(spec, info.name, options)
        except GradhomogError as cause:
            errors.append(str(cause))
    if errors:
        raise ConfigError(f"`observers`: {join_errors(errors)}")


def make(config: Config, folder: Path) -> Observer:
    """Return a function that calls each observer of a run with a copy of a record, and never raises.

    A plugin that raises, or that does not return a callable, is reported on stderr and skipped.

    Args:
        config: configuration of the run.
        folder: folder of the run.
    """
    observers: list[tuple[PluginInfo, Observer]] = []
    for text in config.observers:
        selector, options = expression.parse_one(text)
        try:
            info, _, observer = installed().make("observers", selector, options, config.to_dict(), folder)
        except GradhomogError as cause:
            print(f"The run continues without the observer {text}: {cause}", file=sys.stderr)
            continue
        if callable(observer):
            observers.append((info, observer))
        else:
            print(
                f"The run continues without the observer {text}: the factory of {info} must return a function; got "
                f"{type(observer).__name__}. {info.advice}", file=sys.stderr,
            )  # fmt: skip

    def notify(event: str, record: Mapping[str, Any]) -> None:
        for entry in list(observers):
            info, observer = entry
            try:
                observer(event, copy.deepcopy(record))
            except (Exception, SystemExit) as cause:
                observers.remove(entry)
                print(
                    f"The run continues without an observer: {info} raised at `{event}`: {describe_error(cause)}. "
                    f"{info.advice}", file=sys.stderr,
                )  # fmt: skip

    return notify
