"""A new plugin project: its names, its files from templates, written all or none, and the next commands."""

import builtins
import datetime
import importlib.util
import json
import keyword
import re
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files as resources
from pathlib import Path
from typing import Literal

from packaging.version import Version

import gradhomog
from gradhomog.errors import OptionError, PluginError
from gradhomog.registry import KINDS, Registry

PREFIX = "gradhomog-"
LONGEST = 28  # longer names make the import lines of the generated modules longer than 120 columns
_PLUGIN = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# Reserved in the text form of a pipeline.
_WORDS = frozenset({"none", "true", "false", "inf"})


@dataclass(frozen=True)
class Names:
    """The names of one plugin.

    Attributes:
        plugin: `sign_vote`, the entry point, which users write.
        distribution: `gradhomog-sign-vote`, which is installed; also the folder of the project.
        module: `gradhomog_sign_vote`, which is imported.
        stem: `SignVote`, the name of the class, unless it is in use.
    """

    plugin: str

    @property
    def distribution(self) -> str:
        return PREFIX + self.plugin.replace("_", "-")

    @property
    def module(self) -> str:
        return self.distribution.replace("-", "_")

    @property
    def stem(self) -> str:
        return "".join(part.capitalize() for part in self.plugin.split("_"))

    def class_name(self, kind: str, source: str) -> str:
        """Return the name of the class: `SignVote`, or `SignVoteHomogenizer` if the source already uses that name."""
        taken = keyword.iskeyword(self.stem) or hasattr(builtins, self.stem)
        if taken or re.search(rf"\b{self.stem}\b", source):
            return self.stem + kind.removesuffix("s").capitalize()
        return self.stem


def names(given: str) -> Names:
    """Return the names of the plugin `sign-vote`, also written `sign_vote` or `gradhomog-sign-vote`.

    >>> names("gradhomog-sign-vote")
    Names(plugin='sign_vote')

    Raises:
        OptionError: the name is invalid; the message suggests a valid one.
    """
    plugin = given.replace("-", "_").removeprefix("gradhomog_")
    rules = {
        "start with a letter and contain only lower-case letters, digits and single hyphens": _PLUGIN.fullmatch(plugin),
        "not be a keyword of Python": not keyword.iskeyword(plugin),
        "not be a reserved word of the text form of a pipeline": plugin not in _WORDS,
        "not be gradhomog itself": plugin != "gradhomog",
        f"have at most {LONGEST} characters": len(plugin) <= LONGEST,
    }
    for rule, holds in rules.items():
        if not holds:
            raise OptionError(
                f"the name of a plugin must {rule}; got {given!r}. Write {_similar(given)!r}, for example."
            )
    return Names(plugin)


def _similar(given: str) -> str:
    """Return a valid name that is similar to the given name."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", given).lower()
    words = re.sub(r"[^a-z0-9]+", "-", words).removeprefix(PREFIX).strip("-0123456789")
    words = words[:LONGEST].strip("-")
    plugin = words.replace("-", "_")
    if not plugin or plugin == "gradhomog":
        return "sign-vote"
    if keyword.iskeyword(plugin) or plugin in _WORDS:
        return f"{words}-rows"
    return words


PluginKind = Literal["homogenizers", "learners", "problems"]

DESCRIPTIONS: dict[PluginKind, str] = {
    "homogenizers": "Gradient homogenization by rescaling rows towards their mean norm",
    "learners": "A meta-learner that adapts its head by ridge regression",
    "problems": "A multi-task problem: regression of the sum and the product of two inputs",
}


EXAMPLES: dict[PluginKind, tuple[str, ...]] = {
    "homogenizers": ('homogenizers=["none", "{0}"]',),
    "learners": ('learner=["maml", "{0}"]', 'homogenizers=["none", "pcgrad"]'),
    "problems": ("problem.name={0}",),
}
"""Arguments of `gradhomog compare --set` that run the generated plugin of each kind."""


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


def project(names: Names, kind: PluginKind = "homogenizers", author: str | None = None) -> Project:
    """Return the project of a plugin under the MIT licence, without writing it.

    The templates form the project of a plugin with the name `plugin_name`.

    Args:
        names: the result of `naming.names`.
        kind: the kind of the plugin.
        author: the copyright holder; `"The gradhomog-… authors"` by default.

    Raises:
        OptionError: the author's name is empty or not printable.
    """
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
        "LICENSE": "LICENSE.template",
    }
    folder = resources("gradhomog.scaffold") / "templates"
    sources = {path: (folder / template).read_text(encoding="utf-8") for path, template in templates.items()}
    code = "\n".join(text for path, text in sources.items() if path.endswith(".py"))
    values = {
        "plugin_name": names.plugin,
        "plugin-name": names.plugin.replace("_", "-"),
        "PluginName": names.class_name(kind, code),
        "<group>": kind,
        "<description>": DESCRIPTIONS[kind],
        "<gradhomog_range>": dependency_range(gradhomog.__version__),
        "<year>": str(datetime.date.today().year),
        "<author>": author,
        "<quoted_author>": json.dumps(author, ensure_ascii=False),  # a JSON string is a TOML string
    }
    # All markers are replaced in one pass, so that markers in the values are not.
    marker = re.compile("|".join(map(re.escape, values)))
    texts = {path: marker.sub(lambda match: values[match[0]], text) for path, text in sources.items()}
    return Project(names, kind, texts)


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


def check_name_is_free(names: Names, registry: Registry) -> None:
    """Raise `PluginError` if an installed distribution, gradhomog included, has a plugin or a module of this name."""
    for kind in KINDS:
        for info in registry.list(kind):
            if info.name == names.plugin:
                raise PluginError(
                    f"the name '{names.plugin}' is in use: {info.distribution} {info.version} has a {kind[:-1]} with "
                    "this name. Choose another name, or uninstall that distribution."
                )
    spec = importlib.util.find_spec(names.module)
    if spec is not None and spec.origin is not None:
        raise PluginError(f"the module {names.module} already exists: {spec.origin}. Choose another name.")


def write_project(project: Project, into: Path) -> Path:
    """Write a project to a new folder in `into`, and return that folder. After an error, no file remains.

    Raises:
        OptionError: `into` is not a folder, or the project's folder exists and is not empty.
    """
    target = into / project.names.distribution
    if not into.is_dir():
        raise OptionError(f"`--into` must be an existing folder; got {str(into)!r}. Create it first.")
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise OptionError(f"{target} exists and is not a folder. Move it, or choose another name or `--into`.")
    if target.exists() and any(target.iterdir()):
        raise OptionError(f"{target} exists and is not empty. Move it, or choose another name or `--into`.")
    with tempfile.TemporaryDirectory(prefix=".gradhomog-new-", dir=into) as temporary:
        # In a subfolder, because the temporary folder itself is readable by its owner only.
        built = Path(temporary) / project.names.distribution
        for path, text in project.texts.items():
            (built / path).parent.mkdir(parents=True, exist_ok=True)
            (built / path).write_text(text, encoding="utf-8", newline="\n")
        if target.exists():
            target.rmdir()
        built.rename(target)
    return target


def next_commands(project: Project, folder: Path) -> list[str]:
    """Return the commands to install the project from its folder, to check it and to compare it."""
    name = project.names.plugin
    # Without `./`, pip would interpret the folder as the name of a package to download.
    where = str(folder) if folder.is_absolute() else f"./{folder}"
    command = "show" if project.kind == "problems" else "check"  # the kit has no checks of problems
    settings = [part for text in EXAMPLES[project.kind] for part in ("--set", text.format(name))]
    return [
        shlex.join(["python", "-m", "pip", "install", "-e", f"{where}[test]"]),
        shlex.join(["gradhomog", command, name]),
        shlex.join(["gradhomog", "compare", *settings]),
    ]
