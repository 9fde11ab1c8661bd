"""The methods of a comparison whose run file lists none, and a text in place of a list."""

import pytest

import gradhomog
from gradhomog import ConfigError
from gradhomog.experiments.execution.methods import make_methods
from gradhomog.experiments.results.runs import SINGLE
from gradhomog.experiments.run_file import method_lists
from gradhomog.experiments.run_file.schema import load
from gradhomog.registry import expression

TEXTS = {*load().homogenizers, *method_lists.FEW_SHOT, *method_lists.MULTI_TASK} - {SINGLE}


@pytest.mark.parametrize("text", sorted(TEXTS))
def test_every_default_method_makes_a_pipeline(text):
    for alternative in expression.parse_alternatives(text):
        gradhomog.pipeline(expression.render(alternative))


def test_a_problem_whose_plugin_lists_no_methods_has_those_of_multi_task_problems():
    config = load(None, ["problem.name=glyph_pairs"])
    assert config.homogenizers == list(method_lists.MULTI_TASK)
    assert len(make_methods(config)) == len(method_lists.MULTI_TASK)
    assert load(None, ["problem.name=landscape"]).homogenizers[0] == "none"


@pytest.mark.parametrize("text", ["pcgrad", "ablation"])
def test_a_text_in_place_of_a_list_is_an_error(text):
    with pytest.raises(ConfigError, match=rf"`homogenizers` must be a list.*got '{text}'"):
        load(None, [f"homogenizers={text}"])
