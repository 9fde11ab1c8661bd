"""The example distribution installs with pip and works by name."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "gradhomog-signvote"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example installed into it."""
    # Built from a copy, so that no build files remain in the tree.
    source = shutil.copytree(
        EXAMPLE, tmp_path_factory.mktemp("source") / "example", ignore=shutil.ignore_patterns("__pycache__", ".*")
    )
    target = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--no-build-isolation", "--target", str(target), str(source)],
        check=True,
    )  # fmt: skip
    return target


def run(site: Path, *arguments: str) -> str:
    """Run Python in another folder, with the site folder on its path, and return its standard output."""
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("GRADHOMOG_DISABLE", None)
    result = subprocess.run(
        [sys.executable, "-P", *arguments], capture_output=True, text=True, cwd=site, env=environment, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_it_is_listed_without_being_imported(site: Path) -> None:
    code = (
        "import sys, gradhomog\n"
        "[info] = [i for i in gradhomog.Registry().list('homogenizers') if i.name == 'signvote']\n"
        "print(info)\n"
        "assert not {'gradhomog_signvote', 'torch'} & set(sys.modules)\n"
    )
    assert run(site, "-c", code) == "homogenizer 'signvote' of gradhomog-signvote 0.2.0 (gradhomog_signvote)\n"


def test_it_combines_with_a_built_in_homogenizer_as_computed_by_hand(site: Path) -> None:
    # The vote zeroes −5 and leaves the tie 2, −3. Of a = (2, 0, 1), b = (−3, 0, 1), c = (0, 1, 0) then ⟨a, b⟩ = −5, and
    # c is orthogonal to both: a' = a + 5/10 b = (½, 0, 3/2), b' = b + 5/5 a = (−1, 0, 2).
    code = (
        "import torch, gradhomog, gradhomog_signvote\n"
        "rows = torch.tensor([[2.0, 0, 1], [-3, 0, 1], [0, 1, -5]], dtype=torch.float64)\n"
        "pipe = gradhomog.pipeline('gradhomog-signvote:signvote(threshold=0.1) + pcgrad')\n"
        "assert isinstance(next(iter(pipe)), gradhomog_signvote.SignVote)\n"
        "expected = torch.tensor([-0.5, 1, 3.5], dtype=torch.float64) / 3\n"
        "torch.testing.assert_close(pipe.combine(rows), expected)\n"
        "torch.testing.assert_close(pipe.combine({'all': rows[:, None]}), {'all': expected[None]})\n"
        "print('equal')\n"
    )
    assert run(site, "-c", code) == "equal\n"


@pytest.mark.slow
def test_its_own_tests_and_examples_pass(site: Path) -> None:
    shutil.copytree(EXAMPLE / "tests", site / "own_tests", ignore=shutil.ignore_patterns("__pycache__"))
    (site / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    arguments = ("-m", "pytest", "-v", "-p", "no:cacheprovider", "--doctest-modules", "--pyargs")
    output = run(site, *arguments, "own_tests", "gradhomog_signvote")
    assert " passed" in output
    assert "skipped" not in output
    assert "_signvote.SignVote PASSED" in output
