"""End worker processes with their parent. Imports no large module: a worker calls it before it imports PyTorch."""

import os
import signal
import threading
import time

NAME = "gradhomog-watches-parent"


def end_with_parent(parent: int) -> None:
    """End this process when its parent has ended. Ignore SIGINT and SIGTERM: the parent handles them."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.1)
        os._exit(1)  # only the steps since the last checkpoint are lost

    threading.Thread(target=watch, name=NAME, daemon=True).start()
