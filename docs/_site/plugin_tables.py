"""Tables of plugins: facts, options, traits; and their grouping into families."""

import inspect
from collections.abc import Iterator, Mapping, Sequence

from _site import docstrings
from gradhomog.registry import Kind, PluginInfo, Registry, options
from gradhomog.registry.specs import HomogenizerSpec, Spec

STAGES = ("attach", "begin", "transform", "mix", "rows", "update")
SCALE = '`"mean"`: N identical rows give that row; `"paper"`: the scale of the paper.'  # an option that gradhomog adds
FAMILIES = {
    "losses": "Weights from losses",
    "norms": "Weights from losses, norms and traces",
    "gramian": "From inner products",
    "rows": "On the gradients themselves",
    "features": "On features and activations",
}


def built_in(kind: Kind) -> Iterator[tuple[PluginInfo, Spec]]:
    """The plugins of a kind that come with gradhomog, with their specs."""
    registry = Registry(disabled=())
    for info in registry.list(kind):
        if info.distribution == "gradhomog":
            yield info, registry.load(kind, info.selector)[1]


def stages(spec: HomogenizerSpec) -> list[str]:
    """The stages of a homogenizer; none of a preset, whose options decide."""
    return [stage for stage in STAGES if inspect.isclass(spec.factory) and spec.factory.overrides(stage)]


def family(spec: HomogenizerSpec) -> str:
    """The key in `FAMILIES` of a homogenizer, from its stages and from the statistics that it reads."""
    acts = stages(spec)
    if not acts or {"attach", "transform"} & {*acts}:  # the presets combine methods that act on features
        return "features"
    if "rows" in acts:
        return "rows"
    if {"gramian", "jacobian"} & {*spec.needs}:
        return "gramian"
    return "norms" if {"norms", "kernel_traces"} & {*spec.needs} else "losses"


def title(info: PluginInfo) -> str:
    """The name of a method in its paper: the module's docstring up to the colon."""
    docstring = inspect.getdoc(__import__(info.module, fromlist=["_"])) or info.name
    return docstring.partition(":")[0].removesuffix(".")


def option_table(spec: Spec) -> list[str]:
    """A Markdown table of options with ranges, defaults and meanings."""
    accepted = options.describe(spec)
    if not accepted:
        return ["No options.", ""]
    meanings: Mapping[str, str] = docstrings.arguments(inspect.getdoc(spec.factory) or "")
    meanings = {"scale": SCALE, **meanings} if options.has_paper_scale(spec) else meanings
    lines = table_head("option", "values", "meaning")
    for name, described in zip(options.option_parameters(spec), accepted, strict=True):
        written, _, allowed = described.partition(" (")
        lines.append(table_row(f"`{written}`", allowed.removesuffix(")"), meanings.get(name, "–")))
    return [*lines, ""]


def table_head(*names: str) -> list[str]:
    return [table_row(*names), "|---" * len(names) + "|"]


def table_row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"
