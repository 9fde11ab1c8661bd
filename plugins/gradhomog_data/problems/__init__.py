"""Multi-task problems: pairs of pictures, regression on tables, a toy landscape, and differential equations."""

import pkgutil
import tomllib
from importlib.resources import files

from gradhomog import ProblemSpec, hookimpl


@hookimpl
def gradhomog_problem(name: str) -> ProblemSpec:
    """Describe a problem by its table in `problems.toml`; only the module of this problem is imported."""
    facts = tomllib.loads((files(__name__) / "problems.toml").read_text(encoding="utf-8"))[name]
    problem, unused = pkgutil.resolve_name(facts.pop("factory")), tuple(facts.pop("unused_keys", ()))
    defaults = facts.pop("defaults")
    if name_of_methods := facts.pop("methods", None):
        methods = pkgutil.resolve_name(name_of_methods)
        facts["defaults"] = lambda options: {**defaults, "homogenizers": methods(problem, options)}
    return ProblemSpec(problem, unused_keys=unused, **{"defaults": defaults, **facts})
