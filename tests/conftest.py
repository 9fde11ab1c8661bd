"""Hypothesis profiles and common fixtures; tests require that gradhomog is installed, so that its plugins are found."""

import importlib.metadata
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:
    # Must precede the import of torch: threads of workers that share the cores wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("ci", max_examples=10, deadline=None, derandomize=True)
settings.register_profile("explore", max_examples=400, deadline=None)  # new inputs at every run
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device", default="cpu", help="device of the tests with the fixture `device`: cpu, cuda, cuda:1, pretend"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("device") == "pretend":
        from tests import pretend_device

        pretend_device.register()
    points = importlib.metadata.entry_points(group="gradhomog.homogenizers")
    if not any(point.dist and point.dist.name == "gradhomog" for point in points):
        pytest.exit("gradhomog must be installed, or it has no plugins: run pip install -e .", returncode=4)


@pytest.hookimpl(tryfirst=True)  # before the selection by `-m`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = set()
    for item in items:
        if item.get_closest_marker("slow_after_first"):
            test = item.nodeid.partition("[")[0]
            if test in tests:
                item.add_marker("slow")
            tests.add(test)
    # First the build of the site, which takes minutes in one process. Then those whose fixtures start processes or make
    # an environment, so that one worker runs them and the fixtures exist once: others take over its last tests only.
    together = ("ranks", "scaffold", "hosts")
    items.sort(key=lambda item: (item.path.name != "test_site.py", item.path.parent.name not in together))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("markexpr") == "not slow":  # the default, see pyproject.toml
        terminalreporter.write_line("Without the slow tests, which are run by: python -m pytest -q -n auto -m slow")


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of `pytest --device`; the test is skipped if PyTorch cannot use it."""
    import torch  # here: see OMP_NUM_THREADS above

    name: str = request.config.getoption("device")
    if name.startswith("cuda") and not torch.cuda.is_available():
        pytest.skip(f"--device {name} requires a GPU that PyTorch can use")
    if name != "pretend":
        yield name
        return
    from tests import pretend_device

    with pretend_device.use():
        yield name


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without figures, which take longer than a small comparison."""
    monkeypatch.setattr("gradhomog.experiments.report.page._save_figures", lambda *arguments: {})
