"""Error messages of failed runs, which name the plugin that raised."""

from __future__ import annotations

import traceback

from gradhomog.errors import GradhomogError, describe_error, raised_in_package
from gradhomog.experiments.results.runs import Run
from gradhomog.experiments.run_file.schema import Config
from gradhomog.learners.domains import domain_plugin
from gradhomog.registry import expression, installed
from gradhomog.registry.specs import PluginInfo


def describe_failure(config: Config, run: Run, error: Exception) -> str:
    """Return the error as one line, with the learner, domain or problem that raised it, followed by the traceback.

    An error of gradhomog already names the plugin and is not a defect: it is returned without traceback.
    """
    if isinstance(error, GradhomogError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error}. Completed runs and checkpoints are kept: fix the cause, then continue with --resume."
    third_party = [info for info in _plugins(config, run) if info.distribution != "gradhomog"]
    author = next((info for info in third_party if raised_in_package(error, info.module)), None)
    line = f"{author} raised {describe_error(error)} {author.advice}" if author else describe_error(error)
    return f"{line}\n\n{''.join(traceback.format_exception(error))}"


def _plugins(config: Config, run: Run) -> list[PluginInfo]:
    if config.problem is not None:
        return [installed().find("problems", config.problem["name"])]
    domains = dict.fromkeys(domain_plugin(text) for text in (*config.domains.train, *config.domains.test))
    return [
        *(installed().find("domains", selector) for selector in domains),
        installed().find("learners", expression.parse_one(run.learner)[0]),
    ]
