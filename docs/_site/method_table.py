"""The committed table of all methods: `PYTHONPATH=docs python -m _site.method_table` writes it."""

from pathlib import Path

from _site import method_pages, plugin_tables
from _site.plugin_tables import table_head, table_row
from gradhomog.cli import list_
from gradhomog.registry.specs import HomogenizerSpec

HEAD = """\
# All methods

The {count} built-in homogenizers by tier. *Reads* are the statistics that a method uses, *passes* the backward
passes of a step with N tasks. [Choose a method](index.md) explains the tiers and names the needs. `gradhomog show
NAME` prints the options of a method, `gradhomog list homogenizers` one sentence about each.
"""


def table() -> str:
    """The page: recommended methods first, then those for a need, then the catalogue."""
    found = [(info, spec) for info, spec in plugin_tables.built_in("homogenizers") if isinstance(spec, HomogenizerSpec)]
    order = ["recommended", "for a need", "catalogue"]
    found.sort(key=lambda each: order.index(list_.tier(each[0])))
    lines = [HEAD.format(count=len(found)), *table_head("method", "tier", "paper", "reads", "passes")]
    for info, spec in found:
        lines.append(
            table_row(
                f"[`{info.name}`](../../plugins/{info.module.replace('.', '/')}.py)",
                list_.tier(info),
                "[this project](../results/auto.md)" if info.name == "auto" else plugin_tables.authors(spec),
                ", ".join(sorted(spec.needs)).replace("_", " ") or "–",
                method_pages.passes(info.name, spec),
            )
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    (Path(__file__).parents[1] / "methods" / "table.md").write_text(table(), encoding="utf-8")
