"""Errors for plugins that use the API of gradhomog 0.1, with the lines to change."""

from __future__ import annotations

import inspect

from gradhomog.errors import PluginLoadError

REMOVED = {
    "Evidence": "a stage receives a `Step`: `def mix(self, step: gradhomog.Step)`, with the same statistics",
    "Rows": "`rows` receives a `Step` and returns a Jacobian: "
    "`def rows(self, step): return step.jacobian.map(function)`",
}
"""Public names of 0.1 that were removed, and their replacements."""


def check_stages(homogenizer: type) -> None:
    """Raise if a stage has its signature of gradhomog 0.1.

    Raises:
        PluginLoadError: the message names the line to change and its new form.
    """
    own = vars(homogenizer)
    if "carried" in own:
        raise PluginLoadError(
            f"{homogenizer.__name__}.carried was removed after 0.1. Write `state_names = {own['carried']!r}`, "
            "and let `update(self, step)` return a dict of new values instead of assigning attributes."
        )
    for stage, expected in (
        ("rows", "(self, step)"),
        ("begin", "(self, key, part, generator)"),
        ("measured", "(self, step)"),
    ):
        if stage not in own or not inspect.isfunction(own[stage]):
            continue
        parameters = inspect.signature(own[stage]).parameters
        positional = [name for name, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        variadic = any(p.kind == p.VAR_POSITIONAL for p in parameters.values())
        if (len(positional) < expected.count(",") + 1 and not variadic) or (
            stage == "rows" and "jacobian" in positional
        ):
            advice = f" {REMOVED['Rows']}." if stage == "rows" else ""
            raise PluginLoadError(
                f"{homogenizer.__name__}.{stage}({', '.join(positional)}) has the signature of 0.1. "
                f"Write `def {stage}{expected}`.{advice}"
            )
