"""A process that runs functions of `tests.ranks.cases` as one rank of a process group, until its input ends."""

from __future__ import annotations

import datetime
import pickle
import sys
import traceback
from typing import Any

import torch.distributed as dist

from tests.ranks import cases


def main() -> None:
    rank = int(sys.argv[1])
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # prints must not mix with answers
    while True:
        try:
            name, ranks, store, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(run(name, rank, ranks, store, arguments), answers)
        answers.flush()


def run(name: str, rank: int, ranks: int, store: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    """Return `("result", value)` or `("error", traceback)`."""
    wait = datetime.timedelta(seconds=30)  # an error on one rank ends the others
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=wait)
    try:
        return "result", getattr(cases, name)(*arguments)
    except Exception:
        return "error", traceback.format_exc()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
