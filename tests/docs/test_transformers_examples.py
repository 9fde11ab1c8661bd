"""`docs/examples`: the scripts with Transformers and Sentence Transformers run and print the losses of each task."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import pages
from tests.docs.scripts import printed

EXAMPLES = pages.DOCS / "examples"
pytestmark = pytest.mark.filterwarnings("ignore")  # deprecations within Transformers


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_two_heads_of_bert_print_losses_weights_and_cosine(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="needs the extra `transformers`")
    text = printed(EXAMPLES / "transformers_multitask.py", capsys, "upgrad", "--steps", "50")
    for name in ("loss/parity", "weight/total", "cosine/parity-total", "eval_parity_loss", "eval_total_loss"):
        assert re.search(rf"'{name}': '-?\d", text), name


def test_two_datasets_print_their_losses(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra `sentence-transformers`")
    text = printed(EXAMPLES / "sentence_transformers_datasets.py", capsys, "--steps", "2")
    for name in ("eval_answers_loss", "eval_scores_loss"):
        assert re.search(rf"'{name}': '-?\d", text), name
