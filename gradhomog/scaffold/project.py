"""Generate the files of a new plugin project from templates."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files as resources
from typing import Literal, get_args

from packaging.version import Version

import gradhomog
from gradhomog.errors import OptionError
from gradhomog.scaffold.naming import Names

PluginKind = Literal["homogenizers", "learners", "domains", "problems"]
Licence = Literal["MIT", "Apache-2.0", "BSD-3-Clause", "none"]

DESCRIPTIONS: dict[PluginKind, str] = {
    "homogenizers": "Gradient homogenization by rescaling rows towards their mean norm",
    "learners": "A meta-learner that adapts its head by ridge regression",
    "domains": "Few-shot classification of gratings drawn from formulas",
    "problems": "A multi-task problem: regression of the sum and the product of two inputs",
}


@dataclass(frozen=True)
class Project:
    """A project in memory.

    Attributes:
        names: the names of the plugin and its parts.
        kind: the kind of the plugin.
        texts: the text of each file by its path in the project.
    """

    names: Names
    kind: PluginKind
    texts: Mapping[str, str]


def project(
    names: Names, kind: PluginKind = "homogenizers", licence: str = "MIT", author: str | None = None
) -> Project:
    """Return the project of a plugin, without writing it.

    The templates form the project of a plugin with the name `plugin_name`.

    Args:
        names: the result of `naming.names`.
        kind: the kind of the plugin.
        licence: an SPDX expression of `Licence`; `"none"` reserves all rights.
        author: the copyright holder; `"The gradhomog-… authors"` by default.

    Raises:
        OptionError: the licence is unknown, or the author's name is empty or not printable.
    """
    if licence not in get_args(Licence):
        raise OptionError(f"`--licence` must be one of {', '.join(get_args(Licence))}; got {licence!r}.")
    author = f"The {names.distribution} authors" if author is None else author.strip()
    if not author or not author.isprintable():
        raise OptionError(f"`--author` must be a name on one line; got {author!r}.")
    templates = {
        "pyproject.toml": "pyproject.toml.template",
        "README.md": f"{kind}/README.md.template",
        ".gitignore": "gitignore.template",
        f"{names.module}/__init__.py": f"{kind}/__init__.py.template",
        f"{names.module}/_{names.plugin}.py": f"{kind}/plugin.py.template",
        f"tests/test_{names.plugin}.py": f"{kind}/test.py.template",
    }
    if licence != "none":
        templates["LICENSE"] = f"licences/{licence}.txt"
    sources = {path: _read(template) for path, template in templates.items()}
    code = "\n".join(text for path, text in sources.items() if path.endswith(".py"))
    values = {
        "plugin_name": names.plugin,
        "plugin-name": names.plugin.replace("_", "-"),
        "PluginName": names.class_name(kind, code),
        "<group>": kind,
        "<description>": DESCRIPTIONS[kind],
        "<gradhomog_range>": dependency_range(gradhomog.__version__),
        "<licence_fields>": _licence_fields(licence),
        "<licence_sentence>": _licence_sentence(licence),
        "<year>": str(datetime.date.today().year),
        "<author>": author,
        "<quoted_author>": json.dumps(author, ensure_ascii=False),  # a JSON string is a TOML string
    }
    return Project(names, kind, {path: _fill(text, values) for path, text in sources.items()})


def dependency_range(version: str) -> str:
    """Return the range of versions of gradhomog that a plugin for this version should support.

    >>> dependency_range("0.1.0"), dependency_range("1.4.2"), dependency_range("0.2.0.dev1+local")
    ('>=0.1,<0.2', '>=1.4,<2', '>=0.2.0.dev1,<0.3')
    """
    parsed = Version(version)
    # A pre-release is lower than its release: `>=0.2` excludes 0.2.0.dev1.
    lowest = parsed.public if parsed.is_prerelease else f"{parsed.major}.{parsed.minor}"
    next_one = f"0.{parsed.minor + 1}" if parsed.major == 0 else f"{parsed.major + 1}"
    return f">={lowest},<{next_one}"


def _licence_fields(licence: str) -> str:
    if licence == "none":
        return 'classifiers = ["Private :: Do Not Upload"] # without a licence: the package index rejects uploads'
    return f'license = "{licence}"\nlicense-files = ["LICENSE"]'


def _licence_sentence(licence: str) -> str:
    if licence == "none":
        return "This project has no licence: all rights are reserved."
    return f"Licence: {licence}, see `LICENSE`."


def _read(name: str) -> str:
    return (resources("gradhomog.scaffold") / "templates" / name).read_text(encoding="utf-8")


def _fill(text: str, values: Mapping[str, str]) -> str:
    """Replace all markers in one pass, so that markers in the values are not replaced."""
    return re.sub("|".join(map(re.escape, values)), lambda match: values[match[0]], text)
