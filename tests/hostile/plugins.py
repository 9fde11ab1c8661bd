"""Faulty plugins as text, and what every message about one must tell."""

from __future__ import annotations

import textwrap

IMPORTS = "import gradhomog, numpy, sys, time, torch\nfrom gradhomog import hookimpl\n"

HERE = "homogenizer 'bad' of bad-dist 0.7 (bad_dist)"
ADVICE = "Report it to the authors of bad-dist, or leave 'bad' out."


def plugin(methods: str, spec: str = "", more: str = "") -> str:
    """A module with one homogenizer of these methods, whose spec has these further arguments."""
    return f"""{IMPORTS}
class Bad(gradhomog.Homogenizer):
{textwrap.indent(textwrap.dedent(methods).strip(), "    ")}

@hookimpl
def gradhomog_homogenizer():
    return gradhomog.HomogenizerSpec(factory=Bad, summary="faulty", {spec})
{textwrap.dedent(more)}
"""


def install(gradhomog_install, methods: str, spec: str = "", more: str = "", **options) -> str:
    """Install it as the homogenizer `bad` of bad-dist 0.7."""
    options = {"plugin": "bad", "version": "0.7", **options}
    return gradhomog_install("bad-dist", plugin(methods, spec, more), **options)


def assert_blamed(message: str, *words: str) -> None:
    """It says who it was, what it was, and what to do."""
    for word in (HERE, ADVICE, *words):
        assert word in message, f"{word!r} is missing from {message!r}"
