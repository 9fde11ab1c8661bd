"""A comparison resumes with the pinned plugins only, and raises an error if they are not installed."""

import json
import tomllib

import pytest

import gradhomog
from gradhomog import ConfigError
from gradhomog.experiments.execution.comparison import compare
from gradhomog.experiments.results.records import records
from gradhomog.experiments.run_file import pins
from gradhomog.experiments.run_file.schema import load
from tests.experiments.conftest import SMALL
from tests.experiments.run_helpers import interrupted_after
from tests.hostile.plugins import plugin

pytestmark = pytest.mark.usefixtures("without_figures")

OURS, THEIRS = (plugin(f"def mix(self, step): return torch.full((step.tasks,), {factor})") for factor in (1.0, 0.5))


def config(*more):
    return load(None, [*SMALL, 'homogenizers=["even"]', "seeds=1", *more])


def scores(folder):
    return [record["scores"] for record in records(folder) if record["event"] == "result"]


@pytest.fixture
def interrupted_folder(gradhomog_install, tmp_path):
    """The folder of an interrupted comparison, with the plugin `even` of ours-dist 1.0."""
    gradhomog_install("ours-dist", OURS, plugin="even", version="1.0")
    with interrupted_after(6), pytest.raises(KeyboardInterrupt):
        compare(config(), tmp_path / "out")
    return tmp_path / "out"


def test_run_files_name_the_distribution_and_version_of_every_plugin(interrupted_folder):
    builtin = {f"gradhomog:{name}=={gradhomog.__version__}" for name in ("functions", "maml")}
    for path in (interrupted_folder / "run.toml", next((interrupted_folder / "runs").iterdir()) / "config.toml"):
        assert set(tomllib.loads(path.read_text())["plugins"]) == builtin | {"ours-dist:even==1.0"}


@pytest.mark.slow_after_first
@pytest.mark.parametrize("again", ["the configuration", "its run file"])
def test_resume_ignores_a_plugin_of_the_same_name_of_another_distribution(
    interrupted_folder, gradhomog_install, tmp_path, again
):
    undisturbed = compare(config(), tmp_path / "undisturbed").folder
    gradhomog_install("theirs-dist", THEIRS, plugin="even")
    with pytest.raises(ConfigError, match=r"several distributions: ours-dist 1\.0 and theirs-dist"):
        compare(config(), tmp_path / "new")
    given = config() if again == "the configuration" else load(interrupted_folder / "run.toml")
    assert compare(given, interrupted_folder, resume=True).failures == {}
    assert scores(interrupted_folder) == scores(undisturbed)


def test_resume_with_another_version_of_a_plugin_is_an_error(interrupted_folder, gradhomog_install):
    gradhomog_install("ours-dist", OURS, plugin="even", version="2.0")
    with pytest.raises(ConfigError, match=r"ours-dist:even==1\.0 is pinned, and ours-dist 2\.0 is installed\. Install"):
        compare(config(), interrupted_folder, resume=True)


@pytest.mark.parametrize(
    ("pin", "words"),
    [
        ("nowhere:even==1.0", "nowhere is not installed"),
        ("numpy:even==1.0", "numpy .* has no such plugin"),
        ("pcgrad==1.0", "expected distribution:name==version; got 'pcgrad==1.0'"),
        ("gradhomog:pcgrad>=1", "expected distribution:name==version"),
    ],
)
def test_an_invalid_pin_is_an_error_with_the_reason(pin, words):
    bad = load(None, [*SMALL, f"plugins={json.dumps([pin, 'a:b==3'])}"])
    with pytest.raises(ConfigError, match=words) as raised, pins.use_pinned_plugins(bad):
        pass
    assert "a:b==3 is pinned" in str(raised.value)  # the message lists all invalid pins


def test_members_of_presets_domains_and_tuned_candidates_are_pinned():
    overrides = [*SMALL, 'homogenizers=["rotogbml", "pcgrad | static"]', "learner=fomaml"]
    with pins.use_pinned_plugins(load(None, overrides)) as pinned:
        names = {pin.partition(":")[2].partition("==")[0] for pin in pinned.plugins}
    assert names == {"fomaml", "functions", "isi", "pcgrad", "reweight", "rotate", "rotogbml", "static"}
