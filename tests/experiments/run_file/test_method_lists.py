"""Lists of methods: every expression parses, those of installed plugins give pipelines, and run files can name one."""

import json

import pytest

import gradhomog
from gradhomog import ConfigError
from gradhomog.experiments.execution.methods import make_methods
from gradhomog.experiments.run_file import method_lists
from gradhomog.experiments.run_file.schema import Config, load
from gradhomog.registry import expression, installed

TEXTS = [(name, text) for name, texts in method_lists.METHOD_LISTS.items() for text in texts]
INSTALLED = {info.name for info in installed().list("homogenizers")}


@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_every_member_parses_and_makes_a_pipeline_where_its_plugins_are_installed(name, text):
    for alternative in expression.parse_alternatives(text):
        if {name for name, _ in alternative} <= INSTALLED:
            gradhomog.pipeline(expression.render(alternative))


def test_a_list_is_expanded_when_a_run_file_or_an_override_names_it(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('homogenizers = "ablation"\n')
    config = load(path)
    assert config == load(None, ["homogenizers=ablation"]) == load(None, ['homogenizers="ablation"'])
    assert config.homogenizers == list(method_lists.METHOD_LISTS["ablation"])
    path.write_text(config.to_toml())  # the resolved file lists the members
    assert load(path) == config
    assert load(path, ["homogenizers=default"]) == load()
    assert load(None, ['domains.train=["glyphs:greek"]', "homogenizers=few_shot"]).homogenizers == Config().homogenizers


def test_a_list_of_one_name_is_a_pipeline_not_the_name_of_a_list():
    with pytest.raises(ConfigError, match="unknown homogenizer 'ablation'"):
        make_methods(load(None, ['homogenizers=["ablation"]']))


def test_the_ablation_has_the_papers_nine_rows_first_and_no_row_twice():
    texts = method_lists.listed_methods("ablation")
    names = [[name for name, _ in expression.parse(text)] for text in texts[:9]]
    assert names == [
        [], ["static"], ["reweight"], ["rotate"], ["isi"],
        ["rotate", "reweight"], ["isi", "reweight"], ["isi", "rotate"], ["isi", "rotate", "reweight"],
    ]  # fmt: skip
    assert expression.parse(texts[1]) == [("static", {"weights": [0.1, 0.5, 0.3, 0.4]})]
    assert len(expression.parse_alternatives(texts[-1])) == 3
    runnable = [
        text
        for text in texts
        if {name for alternative in expression.parse_alternatives(text) for name, _ in alternative} <= INSTALLED
    ]
    labels = [row.label for row in make_methods(load(None, [f"homogenizers={json.dumps(runnable)}"]))]
    assert len(set(labels)) == len(runnable)


def test_changing_a_list_does_not_change_the_built_in_one():
    method_lists.listed_methods("default").clear()
    assert load().homogenizers == list(method_lists.METHOD_LISTS["default"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Ablation", "available: default, few_shot, ablation, multitask, landscape, pinn. Did you mean 'ablation'?"),
        ("pcgrad", 'Write a single pipeline as a list: homogenizers = ["pcgrad"].'),
        ("gradnorm", r'homogenizers = ["gradnorm"].'),
    ],
)
def test_an_unknown_list_is_an_error_with_advice(name, message):
    with pytest.raises(ConfigError) as raised:
        method_lists.listed_methods(name)
    assert message in str(raised.value)
    if "as a list" in message:
        advice = str(raised.value).rpartition("homogenizers = ")[2].rstrip(".")
        assert load(None, [f"homogenizers={advice}"]).homogenizers == [name]
