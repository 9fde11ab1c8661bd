"""A worker process ends with its parent. Imports nothing large: a worker runs it before it imports PyTorch."""

from __future__ import annotations

import os
import signal
import threading
import time

NAME = "gradhomog-watches-parent"


def end_with_parent(parent: int) -> None:
    """End this process at once when its parent is gone; leave interrupts to the parent, which says what to do."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.1)
        os._exit(1)  # what was done since the last checkpoint is lost, nothing else

    threading.Thread(target=watch, name=NAME, daemon=True).start()
