"""Tables of plugins: facts, options, traits; and their grouping into families."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence

from _site import docstrings
from gradhomog.cli import list_
from gradhomog.registry import Kind, PluginInfo, Registry, options
from gradhomog.registry.specs import HomogenizerSpec, Spec

STAGES = ("attach", "begin", "transform", "mix", "rows", "update")
SCALE = '`"mean"`: N identical rows give that row; `"paper"`: the scale of the paper.'  # an option that gradhomog adds


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
    """The costliest value that a homogenizer changes or reads: features, rows, gramian, norms or losses."""
    acts = stages(spec)
    if not acts or {"attach", "transform"} & {*acts}:  # the presets combine methods that act on features
        return "features"
    if "rows" in acts:
        return "rows"
    if {"gramian", "jacobian"} & {*spec.needs}:
        return "gramian"
    return "norms" if {"norms", "kernel_traces"} & {*spec.needs} else "losses"


def tier(info: PluginInfo) -> str:
    """The tier of a homogenizer, with the need that it is for."""
    needs = [need for need, names in list_.tiers()["for_a_need"].items() if info.name in names]
    return ": ".join([list_.tier(info), *needs])


def reference(spec: Spec) -> str:
    """The reference of a plugin, with a link to arXiv if it has a number there."""
    arxiv = re.search(r"(?:arXiv |arxiv:)(\d{4}\.\d{4,5})", spec.reference)
    return f"[{spec.reference}](https://arxiv.org/abs/{arxiv[1]})" if arxiv else spec.reference


def authors(spec: Spec) -> str:
    """The authors and the year of the first reference of a plugin, with a link if it has a number of arXiv or a DOI."""
    first = spec.reference.partition(";")[0]
    text = re.match(r"(.*?\d{4})\b", first)
    number = re.search(r"arXiv (\S+?),?(?= |$)|doi (\S+)", first)
    if not text or not number:
        return text[1] if text else "–"
    address = f"https://arxiv.org/abs/{number[1]}" if number[1] else f"https://doi.org/{number[2]}"
    return f"[{text[1]}]({address})"


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
