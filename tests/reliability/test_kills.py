"""A short version of the script beside it."""

from __future__ import annotations

import os

import pytest

from tests.reliability import kills


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forks")
def test_no_kill_changes_the_table(capsys):
    assert kills.main(["--kills", "12", "--commands", "0", "--minutes", "3"]) == 0
    assert "all those of the undisturbed comparison" in capsys.readouterr().out
