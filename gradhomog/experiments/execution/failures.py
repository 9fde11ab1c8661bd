"""What a record says of a run that failed for another reason than a plugin's pipeline or the input."""

from __future__ import annotations

import traceback

from gradhomog import expression
from gradhomog.blame import describe_error, raised_in_package
from gradhomog.domains import domain_plugin
from gradhomog.errors import GradhomogError
from gradhomog.experiments.config.schema import Config
from gradhomog.experiments.results.plan import Run
from gradhomog.registry import installed
from gradhomog.registry.plugininfo import PluginInfo


def reason(config: Config, run: Run, error: Exception) -> str:
    """The error in a line, with the learner or the domain whose code it came through; then its traceback.

    An error of gradhomog says all of this itself, and is no defect: its traceback tells nothing.
    """
    if isinstance(error, GradhomogError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error}. What was done before is kept: go on with --resume when this is mended."
    strangers = [info for info in _plugins(config, run) if info.distribution != "gradhomog"]
    author = next((info for info in strangers if raised_in_package(error, info.module)), None)
    line = f"{author} raised {describe_error(error)} {author.advice}" if author else describe_error(error)
    return f"{line}\n\n{''.join(traceback.format_exception(error))}"


def _plugins(config: Config, run: Run) -> list[PluginInfo]:
    if config.problem is not None:  # its code is ours
        return []
    domains = dict.fromkeys(domain_plugin(text) for text in (*config.domains.train, *config.domains.test))
    return [
        *(installed().find("domains", selector) for selector in domains),
        installed().find("learners", expression.parse_one(run.learner)[0]),
    ]
