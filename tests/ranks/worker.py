"""A process that runs functions of other modules as one rank of a process group, until its input ends."""

import datetime
import importlib
import pickle
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist


def main() -> None:
    rank = int(sys.argv[1])
    answers, sys.stdout = sys.stdout.buffer, sys.stderr  # prints must not mix with answers
    while True:
        try:
            module, name, ranks, store, arguments, keywords = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        function = getattr(importlib.import_module(module), name)
        pickle.dump(run(partial(function, *arguments, **keywords), rank, ranks, store), answers)
        answers.flush()


def run(function: Callable[[], Any], rank: int, ranks: int, store: str) -> tuple[str, Any]:
    """Return `("result", value)` or `("error", traceback)`."""
    wait = datetime.timedelta(seconds=30)  # an error on one rank ends the others
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=wait)
    dist.barrier()  # a rank whose function returns at once would close its connection before others have connected
    torch.manual_seed(0)  # the same on all ranks, whichever functions have run in this process before
    try:
        return "result", function()
    except Exception:
        return "error", traceback.format_exc()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
