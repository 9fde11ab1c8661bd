"""The run file: defaults, overrides, round trip, and errors that contain the key path."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradhomog import ConfigError, UnknownPluginError
from gradhomog.experiments.run_file.schema import Config, load


def test_a_run_file_with_domains_has_the_defaults_for_images(tmp_path):
    default = Config()
    assert load(None, [f"domains.train={default.domains.train}".replace("'", '"')]) == default
    path = tmp_path / "run.toml"
    path.write_text('[domains]\ntest = ["glyphs:braille"]\n')
    assert load(path) == dataclasses.replace(
        default, domains=dataclasses.replace(default.domains, test=["glyphs:braille"])
    )


@given(
    ways=st.integers(1, 5),
    seeds=st.lists(st.integers(0, 99), min_size=1, max_size=4, unique=True),
    lr=st.floats(1e-6, 10),
    setting=st.sampled_from(["weak", "strong"]),
)
def test_the_resolved_file_reads_back_as_the_same_configuration(tmp_path_factory, ways, seeds, lr, setting):
    overrides = [
        f"episodes.ways={ways + 1}", f"seeds={seeds}", f"train.inner_lr={lr!r}", f'domains.setting="{setting}"'
    ]  # fmt: skip
    config = load(None, overrides)
    path = tmp_path_factory.mktemp("resolved") / "run.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    again = load(path)
    assert again == config
    assert again.digest == config.digest


def test_overrides_are_toml_values_or_words_and_replace_values_of_the_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('learner = "maml"\n[train]\nsteps = 7\n')
    config = load(path, ["train.steps=9", "learner=fomaml", 'homogenizers=["none", "pcgrad"]', "domains.setting=weak"])
    assert (config.train.steps, config.learner, config.homogenizers) == (9, "fomaml", ["none", "pcgrad"])
    assert config.domains.setting == "weak"


def test_an_integer_of_more_than_64_bits_among_floats_is_read_back(tmp_path):
    config = load(None, ["problem.name=landscape", f"problem.starts=[[{10**20}, 0.5]]"])
    (tmp_path / "run.toml").write_text(config.to_toml(), encoding="utf-8")
    assert load(tmp_path / "run.toml") == config
    assert config.problem["starts"] == [[1e20, 0.5]]


def test_the_digest_depends_on_all_settings_that_determine_results():
    for change in ("threads=2", "train.steps=3", "seeds=[5]", "learner=fomaml", "test.episodes=9"):
        assert load(None, [change]).digest != load().digest


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.stpes=3", r"unknown key `train.stpes`. Did you mean `train.steps`\?"),
        ("train=3", r"`train` must be a table"),
        ("train.inner_lr=0", r"`train.inner_lr` must be a number > 0; got 0\."),
        ('domains.test=["a", "a"]', r"`domains.test` must not contain duplicates"),
        ("homogenizers=pcgrad", r"`homogenizers` must be a list \(a text each\); got .pcgrad."),
        (f"seeds=[0, {10**30}]", r"`seeds` must be .*an integer ≥ 0 and < 4294967296 each.; got .0, 1000"),
        (f"train.outer_lr={10**400}", r"`train.outer_lr` must be a number > 0 within float64; got 1000"),
        ("seeds=x", r"`seeds` must be an integer or a list"),
        ("network.name=resnet", r"`network.name` must be one of conv4, conv6, .*; got 'resnet'\. Did you mean 'resnet"),
        ("train", r"--set must be key.path=value; got 'train'"),
    ],
)
def test_an_invalid_value_is_an_error_with_its_key_path(override, message):
    with pytest.raises((ConfigError, UnknownPluginError), match=message):
        load(None, [override])


def test_the_error_for_an_invalid_file_has_its_name(tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text("seeds = = 3")
    with pytest.raises(ConfigError, match=r"bad.toml: invalid TOML: .*line 1"):
        load(bad)
    bad.write_text("seeds = 3", "utf-16")
    with pytest.raises(
        ConfigError, match=r"bad.toml: must be UTF-8 text; byte 0 is 0xff, it may be UTF-16. Save it as"
    ):
        load(bad)


def test_a_run_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "run.toml").write_text("seeds = 3", "utf-8-sig")
    assert load(tmp_path / "run.toml").seeds == 3
