"""The table `[problem]` of a run file: its defaults, its excluded keys, and errors with key paths."""

import inspect

import pytest

from gradhomog import ConfigError, UnknownPluginError, available
from gradhomog.experiments.execution.methods import make_methods
from gradhomog.experiments.results import comparison_dir
from gradhomog.experiments.run_file.content import find_problem
from gradhomog.experiments.run_file.schema import load
from gradhomog.experiments.runs import SINGLE, Run
from gradhomog.experiments.training.trainer import make_trainable


def required(name):
    """The name of a problem and its options without a default, which is at most the folder of its data."""
    options = inspect.signature(find_problem(name).factory).parameters.values()
    missing = [f"problem.{o.name}" for o in options if o.kind is o.KEYWORD_ONLY and o.default is o.empty]
    assert missing in ([], ["problem.data"])
    return [f'problem.name="{name}"', *(f'{key}="/folder"' for key in missing)]


@pytest.mark.parametrize("name", available("problems"))
def test_a_problem_needs_only_its_name_and_is_unchanged_after_writing_and_reading(name, tmp_path):
    config = load(None, required(name))
    assert config.learners == [name]
    path = tmp_path / "run.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    again = load(path)
    assert again == config
    assert again.digest == config.digest
    assert not {"learner", "domains", "episodes", "test"} & set(config.to_dict())


@pytest.mark.parametrize("name", available("problems"))
def test_a_problem_has_defaults_that_the_user_overrides_key_by_key(name, tmp_path):
    keys = required(name)
    own = load(None, [*keys, "train.steps=7"])
    assert own.train.steps == 7
    assert own.train.outer_lr == load(None, keys).train.outer_lr
    path = tmp_path / "run.toml"
    lines = ['homogenizers = ["pcgrad"]', *keys, "train.steps = 9"]
    path.write_text("\n".join(lines))
    assert load(path, defaults={"homogenizers": ["mgda"]}).homogenizers == ["pcgrad"]
    assert load(None, keys, defaults={"homogenizers": ["mgda"]}).homogenizers == ["mgda"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["problem.name=glyphs"],
            r"unknown problem 'glyphs'. It is the name of a domain. Installed: burgers, .*glyph_pairs, ",
        ),
        (["problem.script=latin"], r"`problem.name` is missing. Installed problems: burgers, .*glyph_pairs, "),
        (["problem=glyph_pairs"], r"`problem` must be a table, such as problem.name = \"burgers\"; got 'glyph_pa"),
        (
            ["problem.name=glyph_pairs", "problem.scrpt=latin"],
            r"unknown key `problem.scrpt`. Did you mean `problem.scr",
        ),
        (["problem.name=glyph_pairs", "problem.classes=1"], r"`problem.classes` must be an integer ≥ 2; got 1"),
        (["problem.name=glyph_pairs", "learner=fomaml"], r"`learner` is not used with `problem.name` 'glyph_pairs'"),
        (["problem.name=glyph_pairs", "train.inner_lr=0.1"], r"`train.inner_lr` is not used with"),
        (["problem.name=regression", "network.size=28"], r"`network.size` is not used with"),
        (["problem.name=landscape", "seeds=3"], r"`seeds` must be one seed: nothing in the problem is random"),
        (
            ["problem.name=landscape", "problem.starts=[]"],
            r"`problem.starts` must be .* length ≥ 1 and with length ≤ 26; got \[\]",
        ),
        (["problem.name=landscape", "problem.starts=[[1, inf]]"], r"must be a list .*a number.*; got \[\[1, inf\]\]"),
        (["problem.name=landscape", "device=nowhere"], r"`device` must be one that PyTorch can use here"),
        (["problem.name=helmholtz", "problem.initial=5"], r"unknown key `problem.initial`"),
        (["problem.name=helmholtz", "network.name=mlp"], r"`network.name` is not used with `problem.name` 'helmholtz'"),
    ],
)
def test_invalid_keys_and_values_raise_with_their_key_path(overrides, message):
    with pytest.raises(
        (ConfigError, UnknownPluginError), match=message
    ):  # some raise in the file, others in the problem
        make_trainable(load(None, overrides), Run("landscape", "none", 0))


METHODS = ('["pcgrad"]', '["pcgrad | pcgrad(seed=1) | pcgrad(seed=2) | pcgrad(seed=3)", "mgda"]')


@pytest.mark.parametrize("methods", METHODS)
def test_every_table_has_the_plain_learner_and_static_weights_with_the_largest_budget(methods):
    config = load(None, ["problem.name=glyph_pairs", f"homogenizers={methods}"])
    rows = {row.label: row for row in make_methods(config.with_baselines())}
    assert "plain" in rows
    others = [len(row.candidates) for row in make_methods(config)]
    assert len(rows["static (tuned)"].candidates) == max(2, *others)
    assert rows["static (tuned)"].candidates[0] == "static"  # equal weights may win
    assert set(config.homogenizers) <= set(config.with_baselines().homogenizers)
    assert config.with_baselines().with_baselines() == config.with_baselines()


def test_comparisons_of_learners_get_no_baselines():
    config = load(None, ['homogenizers=["pcgrad"]'])
    assert config.with_baselines() == config


def test_a_run_file_in_the_output_folder_may_omit_the_baselines(tmp_path):
    path = tmp_path / comparison_dir.RUN_FILE
    path.write_text('homogenizers = ["pcgrad"]\n[problem]\nname = "glyph_pairs"\n')
    before = path.read_text()
    own = load(path).with_baselines()
    assert comparison_dir.choose_folder(own, tmp_path, resume=False, stem="compare") == tmp_path
    comparison_dir.create_folder(own, tmp_path)
    assert path.read_text() == before
    with pytest.raises(ConfigError, match=r"has another configuration: `problem.classes` is 10 there and 7 here"):
        comparison_dir.choose_folder(
            load(path, ["problem.classes=7"]).with_baselines(), tmp_path, resume=False, stem="compare"
        )


def test_single_task_is_a_method_of_problems_with_networks_only():
    overrides = [f'homogenizers=["{SINGLE}"]']
    (row,) = make_methods(load(None, ["problem.name=glyph_pairs", *overrides]))
    assert (row.label, row.candidates) == (SINGLE, [SINGLE])
    with pytest.raises(ConfigError, match=r"'single-task' does not apply to landscape"):
        make_methods(load(None, ["problem.name=landscape", *overrides]))
    with pytest.raises(ConfigError, match=r"unknown homogenizer 'single-task'"):
        make_methods(load(None, overrides))
