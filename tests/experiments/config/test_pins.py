"""A comparison goes on with the plugins with which it began, or is refused."""

from __future__ import annotations

import json
import tomllib

import pytest

from gradhomog import ConfigError
from gradhomog.experiments.config import pins
from gradhomog.experiments.config.schema import load
from gradhomog.experiments.execution.comparison import compare
from gradhomog.experiments.results.records import records
from tests.experiments.conftest import SMALL
from tests.experiments.run_helpers import interrupted_after

pytestmark = pytest.mark.usefixtures("undrawn")

MEAN = """
import gradhomog, torch
class Mean(gradhomog.Homogenizer):
    def mix(self, step):
        return torch.full((step.tasks,), FACTOR)
@gradhomog.hookimpl
def gradhomog_homogenizer():
    return gradhomog.HomogenizerSpec(factory=Mean, summary="weighs all alike")
"""
OURS, THEIRS = MEAN.replace("FACTOR", "1.0"), MEAN.replace("FACTOR", "0.5")


def config(*more):
    return load(None, [*SMALL, 'homogenizers=["even"]', "seeds=1", *more])


def scores(folder):
    return [record["scores"] for record in records(folder) if record["event"] == "result"]


@pytest.fixture
def begun(gradhomog_install, tmp_path):
    """A comparison that was interrupted; its plugin `even` is of ours-dist 1.0."""
    gradhomog_install("ours-dist", OURS, plugin="even", version="1.0")
    with interrupted_after(6), pytest.raises(KeyboardInterrupt):
        compare(config(), tmp_path / "out")
    return tmp_path / "out"


def test_run_files_name_the_distribution_and_version_of_every_plugin(begun):
    builtin = {f"gradhomog:{name}=={version()}" for name in ("functions", "maml")}
    for path in (begun / "run.toml", next((begun / "runs").iterdir()) / "config.toml"):
        assert set(tomllib.loads(path.read_text())["plugins"]) == builtin | {"ours-dist:even==1.0"}


def version():
    import gradhomog

    return gradhomog.__version__


def test_the_first_event_of_a_run_has_the_versions_of_its_plugins(begun):
    [path] = (begun / "runs").glob("*/events.jsonl")
    start = json.loads(path.read_text().splitlines()[0])
    assert start["versions"]["ours-dist"] == "1.0"


@pytest.mark.parametrize("again", ["the configuration", "its run file"])
def test_it_goes_on_though_another_distribution_now_has_a_plugin_of_that_name(
    begun, gradhomog_install, tmp_path, again
):
    undisturbed = compare(config(), tmp_path / "undisturbed").folder
    gradhomog_install("theirs-dist", THEIRS, plugin="even")
    with pytest.raises(ConfigError, match=r"offered by ours-dist 1\.0 and theirs-dist"):
        compare(config(), tmp_path / "new")
    given = config() if again == "the configuration" else load(begun / "run.toml")
    assert compare(given, begun, resume=True).failures == {}
    assert scores(begun) == scores(undisturbed)


def test_a_run_file_with_pins_runs_anew_though_another_distribution_has_that_name(begun, gradhomog_install, tmp_path):
    gradhomog_install("theirs-dist", THEIRS, plugin="even")
    assert compare(load(begun / "run.toml"), tmp_path / "new").failures == {}


def test_it_does_not_go_on_with_another_version(begun, gradhomog_install):
    gradhomog_install("ours-dist", OURS, plugin="even", version="2.0")
    with pytest.raises(ConfigError, match=r"ours-dist:even==1\.0 is pinned, and ours-dist 2\.0 is installed\. Install"):
        compare(config(), begun, resume=True)


@pytest.mark.parametrize(
    ("pin", "words"),
    [
        ("nowhere:even==1.0", "nowhere is not installed"),
        ("numpy:even==1.0", "numpy .* has no such plugin"),
        ("pcgrad==1.0", "expected distribution:name==version; got 'pcgrad==1.0'"),
        ("gradhomog:pcgrad>=1", "expected distribution:name==version"),
    ],
)
def test_a_pin_that_cannot_hold_is_refused_with_the_reason(pin, words):
    bad = load(None, [*SMALL, f"plugins={json.dumps([pin, 'a:b==3'])}"])
    with pytest.raises(ConfigError, match=words) as raised, pins.using(bad):
        pass
    assert "a:b==3 is pinned" in str(raised.value)  # all are named


def test_members_of_presets_domains_and_tuned_candidates_are_pinned():
    overrides = [*SMALL, 'homogenizers=["rotogbml", "pcgrad | static"]', "learner=fomaml"]
    with pins.using(load(None, overrides)) as pinned:
        names = {pin.partition(":")[2].partition("==")[0] for pin in pinned.plugins}
    assert names == {"fomaml", "functions", "isi", "pcgrad", "reweight", "rotate", "rotogbml", "static"}
