"""Plugins with the API of gradhomog 0.1 raise errors that name the line and its replacement."""

from __future__ import annotations

import pytest
import torch

import gradhomog
from gradhomog import PluginLoadError, PluginRunError

HOOK = """
@gradhomog.hookimpl
def gradhomog_homogenizer():
    return gradhomog.HomogenizerSpec(factory=Old, summary="of 0.1", reference="new", needs={needs})
"""

OLD_LINES = {
    "imports Evidence": (
        "from gradhomog import Evidence",
        "def mix(self, evidence: Evidence): return torch.ones(evidence.tasks)",
        "a stage receives a `Step`: `def mix(self, step: gradhomog.Step)`",
    ),
    "imports Rows": (
        "from gradhomog import Rows",
        "def rows(self, jacobian: Rows): return jacobian",
        "`def rows(self, step): return step.jacobian.map(function)`",
    ),
    "rows(self, jacobian)": ("", "def rows(self, jacobian): return jacobian", "`def rows(self, step)`"),
    "carried": ("", "carried = ('usual',)", r"`state_names = \('usual',\)`.* `update\(self, step\)` return a dict"),
    "measured(self)": ("", "def measured(self): return {}", r"`def measured\(self, step\)`"),
    "begin(self, key, part)": ("", "def begin(self, key, part): pass", r"`def begin\(self, key, part, generator\)`"),
}


def install(gradhomog_install, imports: str, line: str, needs: str = "set()") -> str:
    source = f"import gradhomog, torch\n{imports}\nclass Old(gradhomog.Homogenizer):\n    {line}\n"
    return gradhomog_install("old-dist", source + HOOK.format(needs=needs), version="0.7")


@pytest.mark.parametrize("case", OLD_LINES)
def test_a_line_of_0_1_raises_with_its_replacement(gradhomog_install, case):
    imports, line, advice = OLD_LINES[case]
    name = install(gradhomog_install, imports, line)
    with pytest.raises(PluginLoadError, match=advice if "\\" in advice else None) as raised:
        gradhomog.pipeline(name).combine(torch.eye(2))
    assert "homogenizer 'old_dist' of old-dist 0.7 (old_dist)" in str(raised.value)
    if "\\" not in advice:
        assert advice in str(raised.value)


def test_a_statistic_of_0_1_raises_with_its_new_name(gradhomog_install):
    name = install(gradhomog_install, "", "def mix(self, step): return torch.ones(step.tasks)", needs="{'rows'}")
    with pytest.raises(PluginLoadError, match=r"'rows' was renamed after 0\.1; write 'jacobian'"):
        gradhomog.pipeline(name)


def test_an_update_that_returns_none_raises_with_the_dict_to_return(gradhomog_install):
    line = "def mix(self, step): return torch.ones(step.tasks)\n    def update(self, step): self.usual = 1"
    with pytest.raises(PluginRunError, match=r"must return from `update` a dict .*; got NoneType"):
        gradhomog.pipeline(install(gradhomog_install, "", line)).combine(torch.eye(2))


def test_a_mix_whose_argument_has_the_name_evidence_still_works(gradhomog_install):
    name = install(gradhomog_install, "", "def mix(self, evidence): return torch.ones(evidence.tasks)")
    assert gradhomog.pipeline(name).combine(torch.eye(2)).tolist() == [0.5, 0.5]


def test_a_learner_that_overrides_stepped_raises_with_the_new_name():
    with pytest.raises(PluginLoadError, match=r"Old\.stepped was renamed after 0\.1\. Write `def on_step_end\(self\)`"):

        class Old(gradhomog.Learner):
            def stepped(self):
                pass
