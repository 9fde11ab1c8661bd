"""The guide to multi-task problems lists their keys with the actual defaults."""

import re
import tomllib
from pathlib import Path

import pytest

from gradhomog.experiments.run_file.schema import load

GUIDE = Path(__file__).parents[3] / "docs" / "guide"
TEXT = "\n".join((GUIDE / name).read_text(encoding="utf-8") for name in ("multitask.md", "pinn.md"))
EXAMPLES = [tomllib.loads(block) for block in re.findall(r"^```toml\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["problem"]["name"])
def test_the_page_lists_every_key_of_a_problem_and_its_other_defaults(example):
    name = example["problem"]["name"]
    config = load(None, [f"problem.name={name}"]).to_dict()
    assert example["problem"] == config["problem"]
    for table in ("network", "train"):
        assert example.get(table, {}).items() <= config.get(table, {}).items()
        usual = load().to_dict()[table]
        own = {key: value for key, value in config.get(table, {}).items() if value != usual[key]}
        assert own.items() <= example.get(table, {}).items()


@pytest.mark.parametrize("name", ["helmholtz", "burgers", "klein_gordon"])
def test_the_page_lists_the_points_of_physics_informed_problems_which_differ_in_nothing_else(name):
    (cells,) = re.findall(rf"^\| `{name}` \|([ \d]*)\|([ \d]*)\|([ \d]*)\|$", TEXT, re.MULTILINE)
    points = {
        key: int(cell) for key, cell in zip(("interior", "initial", "boundary"), cells, strict=True) if cell.strip()
    }
    (example,) = (example for example in EXAMPLES if example["problem"]["name"] == "helmholtz")
    config = load(None, [f"problem.name={name}"]).to_dict()
    common = {key: value for key, value in example["problem"].items() if key not in ("interior", "boundary")}
    assert config["problem"] == {**common, "name": name, **points}
    for table in ("network", "train"):
        assert example[table].items() <= config[table].items()


def test_digit_pairs_have_the_keys_of_glyph_pairs_except_those_of_rendering():
    glyphs, digits = (load(None, [f"problem.name={name}"]).to_dict() for name in ("glyph_pairs", "digit_pairs"))
    own = {"name", "script", "classes", "instances"}
    assert digits["problem"].items() - {("name", "digit_pairs")} == {
        (key, value) for key, value in glyphs["problem"].items() if key not in own
    }
    assert [digits[table] for table in ("network", "train")] == [glyphs[table] for table in ("network", "train")]
