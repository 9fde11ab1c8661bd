"""Sources of faulty plugins, and a check of the messages about them."""

import textwrap

IMPORTS = "import gradhomog, numpy, sys, time, torch\nfrom gradhomog import hookimpl\n"

HERE = "homogenizer 'bad' of bad-dist 0.7 (bad_dist)"
ADVICE = "Report it to the authors of bad-dist, or remove 'bad'."


def plugin(methods: str, spec: str = "", more: str = "") -> str:
    """Return the source of a module with one homogenizer: its methods, further arguments of its spec, further code."""
    return f"""{IMPORTS}
class Bad(gradhomog.Homogenizer):
{textwrap.indent(textwrap.dedent(methods).strip(), "    ")}

@hookimpl
def gradhomog_homogenizer():
    return gradhomog.HomogenizerSpec(factory=Bad, summary="faulty", {spec})
{textwrap.dedent(more)}
"""


def install(gradhomog_install, methods: str, spec: str = "", more: str = "", **options) -> str:
    """Install the plugin as the homogenizer `bad` of bad-dist 0.7."""
    options = {"plugin": "bad", "version": "0.7", **options}
    return gradhomog_install("bad-dist", plugin(methods, spec, more), **options)


def assert_blamed(message: str, *words: str) -> None:
    """Assert that the message names the plugin, contains the words, and ends with advice."""
    for word in (HERE, ADVICE, *words):
        assert word in message, f"{word!r} is missing from {message!r}"
