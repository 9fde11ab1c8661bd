"""One page per homogenizer: formula, picture, use, options, behaviour, cost, deviations, traits, commands."""

import inspect
import json
import re
import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _site import docstrings, pictures, plugin_tables, step_memory
from _site.plugin_tables import code, table_head, table_row
from gradhomog.registry import PluginInfo
from gradhomog.registry.specs import HomogenizerSpec

LETTERS = (
    "$g_i$ is the gradient of task $i$, $L_i$ its loss, $N$ the number of tasks, "
    "$G_{ij} = \\langle g_i, g_j\\rangle$, $d$ the direction of the step. N identical gradients give that gradient."
)
TRAITS = {
    "differentiable": "The direction is differentiable in rows and losses.",
    "stateful": "It keeps state between steps; save it with `pipe.state_dict()`.",
    "stochastic": "It draws random numbers, from a seed and the number of the step.",
    "momentum": "It averages rows over steps.",
    "permutation_equivariant": "The order of the tasks does not matter.",
    "loss_scale_invariant": "A common factor of the losses does not matter.",
    "scale_equivariant": "A common factor of the rows is the same factor of the direction.",
    "rotation_equivariant": "A rotation of parameter space rotates the direction.",
    "per_tensor": "Each tensor of parameters is homogenized separately.",
    "non_conflicting": "The direction conflicts with no row.",
    "orthogonal": "The transform of the features is a rotation.",
}
PASSES = {
    "auto": "N, one per task, in the first 20 steps; then 1.1 on average",
    "balancer": 'N, one per task; with `measure`, or `on="features"`, 1 and one from each loss to these tensors',
    "fwt": "1",
    "isi": "1",
    "mgda": 'N, one per task; 1 and one through each head with `on="features"`',
    "ntk": "1; in every `every`-th step up to `probes` more for each task",
    "peakscale": "N, one per task, in the first steps; then 1 and, on average, at most 1 / `spacing`",
    "rotograd": "1, and one through each head",
    "tracked": "1, of one task; N in some steps",
}
"""Backward passes of a multi-task step, where its family does not decide."""


PROPERTIES = """\
# Properties of the methods

A property is a claim of the plugin that the [conformance kit](../reference/checks.md) tests.
"""


def pages(folder: Path) -> dict[str, str]:
    """The pages of all built-in homogenizers and the list of them, by path; writes their pictures."""
    formulas = tomllib.loads((folder / "formulas.toml").read_text(encoding="utf-8"))
    found = {info: spec for info, spec in plugin_tables.built_in("homogenizers") if isinstance(spec, HomogenizerSpec)}
    written = {"methods/properties.md": _traits(found)}
    for info, spec in found.items():
        picture = pictures.draw(info.name, folder / "pictures")
        written[f"methods/{info.name}.md"] = _page(info, spec, formulas[info.name], picture)
    return written


def _page(info: PluginInfo, spec: HomogenizerSpec, formula: Mapping[str, str], picture: str) -> str:
    blocks = list(docstrings.paragraphs(inspect.getdoc(spec.factory) or ""))
    by_kind = {block.kind: block.text for block in blocks if block.kind not in ("text", "formula")}
    formulas = [block for block in blocks if block.kind == "formula"]
    first, *texts = [
        f"```text\n{textwrap.dedent(block.text)}\n```" if block.kind == "formula" else _linked(block.text)
        for block in blocks
        if block.kind in ("text", "State:") or block in formulas[1:]  # the first formula is set in LaTeX
    ]
    source = plugin_tables.reference(spec)
    title = plugin_tables.title(info)
    stages = plugin_tables.stages(spec)
    facts = [
        *(table_row(f"`{trait}`", TRAITS[trait]) for trait in sorted(spec.traits)),
        table_row("backward passes", passes(info.name, spec)),
        table_row("stages", code(stages) if stages else "depend on its options"),
        table_row("reads", code(sorted(spec.needs))),
        *([_memory(info.name)] if plugin_tables.family(spec) in {"norms", "gramian", "rows"} else []),
        *([table_row("place", "the last of its pipeline")] if spec.last else []),
        *([table_row("limit", f"{spec.max_tasks} tasks")] if spec.max_tasks else []),
    ]
    parts = [
        f"# {title}" + ("" if title == info.name else f" (`{info.name}`)"),
        f"{docstrings.capitalized(spec.summary)}. {source + '.' if source else ''} "
        f"Tier: [{plugin_tables.tier(info)}](table.md).",
        f"```{{figure}} pictures/{info.name}.svg\n:alt: {picture.replace('`', '')}\n\n{picture}\n```",
        *("## Formula", first, f"$$\n{formula['formula'].strip()}\n$$", formula.get("symbols", "").strip(), LETTERS),
        *("## When to use it", _linked(by_kind.get("Use it when", ""))),
        *("## Use it", "\n".join(["```python", *_use(info.name, spec), "```"])),
        "Compare it with the plain learner and tuned static weights:",
        f"```sh\n{_comparison(info.name)}\n```",
        *("## Options", "\n".join(plugin_tables.option_table(spec)).strip()),
        *("## Behaviour", *texts),
    ]
    for heading in ("Cost", "Source"):
        if text := by_kind.get(f"{heading}:"):
            parts += [f"## {heading}", _without_label(text)]
    if text := by_kind.get("Deviations:"):
        items = docstrings.numbered(_linked(_without_label(text)))
        numbered = "\n".join(f"1. {docstrings.capitalized(item)}" for item in items)
        parts += ["## Deviations from the paper and other implementations", numbered]
    parts += ["## Properties", "\n".join([*table_head("property", "meaning"), *facts])]
    parts += [f"`gradhomog check {info.name}` tests these properties."]
    if example := by_kind.get("example"):
        parts += ["## Example", f"```pycon\n{example}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _linked(text: str) -> str:
    """The text with paths of pages, public names and methods as links."""
    text = re.sub(r"`?docs/((?:results|decisions|guide)/[\w./-]+?)\.md`?", r"[\1](../\1.md)", text)
    return re.sub(r"`(gradhomog\.\w+)`", r"{py:obj}`\1`", text)


def link_to_pages(app: Any, page: str, content: list[str]) -> None:
    """Link to the page of a method where the text, for readers of the repository, links to its source."""
    methods = "../" * page.count("/") + "methods"
    content[0] = re.sub(r"\]\((?:\.\./)+plugins/gradhomog_plugins/(\w+)\.py", rf"]({methods}/\1.md", content[0])


def _without_label(text: str) -> str:
    return docstrings.capitalized(text.partition(":")[2].strip())


def _use(name: str, spec: HomogenizerSpec) -> list[str]:
    """The lines that use a method in a multi-task loop and in a meta-learner."""
    expression = pictures.OPTIONS.get(name, name)
    acts = plugin_tables.stages(spec)
    lines = [f"pipe = gradhomog.pipeline({json.dumps(expression)})", ""]
    if "attach" in acts:
        lines += [
            "with pipe.attached(encoder):  # in a multi-task loop: new random numbers in each pass of the encoder",
            "    ...",
        ]
    elif "transform" in acts or not acts:
        lines += [
            "features = gradhomog.task_features(encoder(x), pipe, tasks=2)  # in a multi-task loop",
            "losses = [loss(head(z), y) for loss, head, z, y in zip(criteria, heads, features, targets)]",
            "report = gradhomog.backward(losses, pipe, parameters=encoder, features=features)",
        ]
    else:
        lines += ["report = gradhomog.backward(losses, pipe, parameters=encoder)  # in a multi-task loop"]
    return [*lines, "", 'learner = gradhomog.learner("maml", encoder, head, homogenizers=pipe)  # a meta-learner']


def _comparison(name: str) -> str:
    """The command that compares a method; methods that act on convolutions need images."""
    method = 'static(weights="random", seed=2)' if name == "static" else pictures.OPTIONS.get(name, name)
    methods = ["none", 'static | static(weights="random", seed=1)', method.replace("'", '"')]
    run_file = "docs/examples/glyphs.toml " if name in {"fwt", "isi", "rotogbml"} else ""
    return f"gradhomog compare {run_file}--set 'homogenizers={json.dumps(methods)}'"  # TOML's strings are those of JSON


def _memory(name: str) -> str:
    """The row of a table with the measured memory of a step."""
    peak, state = step_memory.measure(pictures.OPTIONS.get(name, name))
    kept = f"; {state:g} of them are kept for the next step" if state else ""
    return table_row("memory", f"{peak:g} gradients in a step of {step_memory.TASKS} tasks, rows included{kept}")


def passes(name: str, spec: HomogenizerSpec) -> str:
    """The number of backward passes of a multi-task step."""
    return PASSES.get(name, "1" if plugin_tables.family(spec) == "losses" else "N, one per task")


def _traits(found: Mapping[PluginInfo, HomogenizerSpec]) -> str:
    """A table of the traits of all methods."""
    lines = [PROPERTIES, *table_head("method", *(trait.replace("_", " ") for trait in TRAITS))]
    for info, spec in found.items():
        marks = ("✓" if trait in spec.traits else "" for trait in TRAITS)
        lines.append(table_row(f"[`{info.name}`]({info.name}.md)", *marks))
    return "\n".join([*lines, ""])
