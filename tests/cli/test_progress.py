"""The lines on standard error during a comparison: one per run, with its name, and the remaining time."""

from typing import Any

import pytest

from gradhomog.cli._progress import Progress
from tests.experiments.synthetic_records import result

PLAN = {"event": "plan", "runs": 4, "steps": 5, "finished": 0, "jobs": 2}


def failed(error: str) -> dict[str, Any]:
    return {"event": "failed", "run": "bad-s0", "homogenizers": "bad", "learner": "maml", "seed": 0, "error": error}


def lines(capsys: pytest.CaptureFixture[str], learners: list[str], *records: dict[str, Any]) -> list[str]:
    with Progress() as progress:
        progress({**PLAN, "learners": learners})
        for record in records:
            progress(record)
    return [line for line in capsys.readouterr().err.splitlines() if "seed" in line]


def test_an_error_of_several_lines_is_one_line_without_its_traceback(capsys):
    trace = "Traceback (most recent call last):\n  File x\nValueError: I do not like\nthis network\n"
    [line] = lines(capsys, ["maml"], failed(f"ValueError: I do not like\nthis network (x.py:3)\n\n{trace}"))
    assert line.endswith("seed 0  failed: ValueError: I do not like this network (x.py:3)")


@pytest.mark.parametrize(
    ("learners", "starts"), [(["maml"], ["plain ", "bad "]), (["maml", "protonet"], ["protonet, plain ", "maml, bad "])]
)
def test_lines_have_the_learner_if_there_are_several(capsys, learners, starts):
    records = result("plain", 0, [0.5], learner=learners[-1]), failed("no")
    found = lines(capsys, learners, *records)
    assert len(found) == 2
    assert all(line.startswith(start) for line, start in zip(found, starts, strict=True))


def test_rows_of_a_table_have_their_titles(capsys):
    titles = {("maml", "bad"): "M-ConFIG"}
    with Progress() as progress:
        progress({"event": "comparison", "name": "weak", "index": 0, "of": 1, "titles": titles})
        progress({**PLAN, "learners": ["maml"]})
        progress(failed("no"))
    assert capsys.readouterr().err.splitlines()[-1].startswith("M-ConFIG   ")


def test_the_remaining_time_is_that_of_finished_runs_and_omitted_before(capsys):
    """The first steps gave "about 104 s" and "48.3 h" for a comparison of 53 s."""
    now = [0.0]
    with Progress(clock=lambda: now[0]) as progress:
        progress({"event": "dry_run", "run": "maml-none", "of": 3})
        progress({**PLAN, "learners": ["maml"]})
        for second, run, step in ((1.0, "a", 0), (1.0, "b", 0), (12.0, "a", 3), (30.0, "a", 5), (40.0, "b", 4)):
            now[0] = second
            progress({**failed(""), "event": "progress", "run": run, "step": step, "losses": [1.0, None]})
            if step == 5:  # after test, 1 s later
                now[0] += 1.0
                progress({**result("plain", 0, [0.5]), "run": run})
    found = [line for line in capsys.readouterr().err.splitlines() if "seed" not in line]
    assert found == [
        "dry run: two steps of each of 3 methods",
        "4 runs of 5 steps, 2 at a time",
        " 15% of all steps",
        " 25% of all steps",
        " 45% of all steps, about 33 s remaining",  # 30 s a run; 11 of 20 steps are 2.2 runs, two at a time
    ]
