"""The page of the conformance kit's checks."""

from _site.plugin_tables import table_head, table_row
from gradhomog.testing import checks
from gradhomog.testing.kits import SUBJECTS

HEAD = """\
# Checks of the conformance kit

`gradhomog check NAME` runs these checks. The [guide](../guide/check.md) describes the command, the results, and the
use in your own tests.
"""


def pages() -> dict[str, str]:
    """One table for each kind of plugin."""
    lines = [HEAD]
    for kind in SUBJECTS:
        lines += [f"## {kind.capitalize()}", "", *table_head("check", "property", "required of")]
        for check in checks(kind):
            required = "all" if check.claim is None else f"the trait `{check.claim}`"
            lines.append(table_row(f"`{check.name}`", " ".join(check.summary.split()), required))
        lines.append("")
    return {"reference/checks.md": "\n".join(lines)}
