"""Multi-task problems: pairs of pictures, regression on tables, a toy landscape, and differential equations."""

import pkgutil
import tomllib
from importlib.resources import files

from gradhomog import ProblemSpec, hookimpl


@hookimpl
def gradhomog_problem(name: str) -> ProblemSpec:
    """Describe a problem by its table in `problems.toml`; only the module of this problem is imported."""
    facts = tomllib.loads((files(__name__) / "problems.toml").read_text(encoding="utf-8"))[name]
    unused = tuple(facts.pop("unused_keys", ()))
    return ProblemSpec(pkgutil.resolve_name(facts.pop("factory")), unused_keys=unused, **facts)
