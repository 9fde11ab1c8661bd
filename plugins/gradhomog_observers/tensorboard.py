"""The observer `tensorboard`: the metrics of a run as curves in TensorBoard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradhomog import ConfigError, ObserverSpec, hookimpl
from gradhomog_observers._scalars import scalars

try:
    from torch.utils.tensorboard.writer import SummaryWriter
except ImportError as cause:
    raise ConfigError("it needs the package tensorboard: pip install 'gradhomog[tensorboard]'.") from cause


class TensorBoard:
    """Write an event file into the folder of the run. View all runs with `tensorboard --logdir FOLDER/runs`.

    Names of curves: `loss/mean`, `cosine/mean`, `loss/<domain>`, `accuracy/<domain>`, `norm/<domain>`,
    `weight/<domain>`, `<homogenizer>/<name>`, `validation/score`, `test/score`, `test/loss`.

    A resumed run writes another file; TensorBoard hides the points of earlier files after the resumed checkpoint.
    """

    def __init__(self, config: Mapping[str, Any], folder: Path) -> None:
        self.folder = folder
        self.writer: SummaryWriter | None = None

    def __call__(self, event: str, record: Mapping[str, Any]) -> None:
        if event == "start":
            self.writer = SummaryWriter(str(self.folder), purge_step=record["step"] + 1)
        if self.writer is None:
            return
        step = record["steps"] if event == "result" else record["step"]
        for name, value in scalars(event, record).items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()  # a killed process would lose buffered points
        if event in ("result", "failed"):
            self.writer.close()


@hookimpl
def gradhomog_observer() -> ObserverSpec:
    return ObserverSpec(factory=TensorBoard, summary="writes an event file for TensorBoard in the folder of the run")
