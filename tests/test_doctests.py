"""Doctests of all installed modules."""

import doctest
import importlib.util
import pkgutil
from pathlib import Path

import pytest
import torch

import gradhomog
import gradhomog_adapters
import gradhomog_plugins

PACKAGES = (gradhomog, gradhomog_adapters, gradhomog_plugins)
MODULES = sorted(
    [package.__name__ for package in PACKAGES]
    + [info.name for package in PACKAGES for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
)


def source(name: str) -> str:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


WITH_EXAMPLES = [name for name in MODULES if ">>> " in source(name)]


def test_every_file_is_a_searched_module() -> None:
    files = {
        ".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")
        for package in PACKAGES
        for folder in [Path(str(package.__file__)).parent]
        for path in folder.rglob("*.py")
    }
    assert files == set(MODULES)


REQUIRED = {
    "gradhomog_adapters.deepxde": "deepxde",
    "gradhomog_adapters.lightning": "lightning.pytorch",
    "gradhomog_adapters.pina": "pina.solver",
    "gradhomog_adapters.sentence_transformers": "sentence_transformers",
    "gradhomog_adapters.torch_rechub": "torch_rechub",
    "gradhomog_adapters.transformers": "transformers",
    "gradhomog_adapters.trl": "trl",
}
"""Packages of frameworks without which their adapters cannot be imported."""


@pytest.mark.filterwarnings("ignore:.*activation_checkpointing:FutureWarning")  # within TRL
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_doctests_of_a_module_pass(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name in REQUIRED:
        monkeypatch.setenv("DDE_BACKEND", "pytorch")
        pytest.importorskip(REQUIRED[name], reason=f"needs the extra of {name}")
        torch.set_default_device(None)  # DeepXDE sets CUDA where there is a GPU
    result = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch, "gradhomog": gradhomog})
    assert result.attempted > 0
    assert result.failed == 0
