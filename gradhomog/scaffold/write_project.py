"""Write a plugin project to disk: check its name, write all files or none, list the next commands."""

from __future__ import annotations

import importlib.util
import shlex
import tempfile
from pathlib import Path

from gradhomog.errors import OptionError, PluginError
from gradhomog.registry import KINDS, Registry
from gradhomog.scaffold.naming import Names
from gradhomog.scaffold.project import PluginKind, Project

EXAMPLES: dict[PluginKind, tuple[str, ...]] = {
    "homogenizers": ('homogenizers=["none", "{0}"]',),
    "learners": ('learner=["maml", "{0}"]', 'homogenizers=["none", "pcgrad"]'),
    "domains": ('domains.train=["{0}:stripes", "{0}:checks"]', 'domains.test=["{0}:waves"]'),
    "problems": ("problem.name={0}",),
}
"""Arguments of `gradhomog compare --set` that run the generated plugin of each kind."""


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
    checked = f"{name}:stripes" if project.kind == "domains" else name
    command = "show" if project.kind == "problems" else "check"  # the kit has no checks of problems
    settings = [part for text in EXAMPLES[project.kind] for part in ("--set", text.format(name))]
    return [
        shlex.join(["python", "-m", "pip", "install", "-e", f"{where}[test]"]),
        shlex.join(["gradhomog", command, checked]),
        shlex.join(["gradhomog", "compare", *settings]),
    ]
