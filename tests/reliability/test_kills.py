"""A short run of the script `kills`."""

from __future__ import annotations

import os

import pytest

from tests.reliability import kills


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the script forks")
def test_kills_do_not_change_the_table(capsys):
    assert kills.main(["--kills", "12", "--commands", "0", "--minutes", "3"]) == 0
    assert "all those of the undisturbed comparison" in capsys.readouterr().out
