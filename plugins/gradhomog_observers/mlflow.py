"""The observer `mlflow`: each run as a run of MLflow, with its configuration and what it measures."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradhomog import ConfigError, ObserverSpec, hookimpl
from gradhomog_observers._scalars import scalars

try:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException
except ImportError as cause:
    raise ConfigError("it needs the package mlflow: pip install 'gradhomog[mlflow]'.") from cause

PARAMETERS_AT_A_TIME = 100
"""The limit of MLflow for one request."""


class MLflow:
    """Records a run of gradhomog as a run of MLflow: configuration as parameters, numbers as metrics.

    Args:
        experiment: the experiment of MLflow, made if there is none of that name.
        tracking_uri: of the server or store; by default MLflow's own, the environment variable `MLFLOW_TRACKING_URI`.

    Names of metrics: `loss/mean`, `cosine/mean`, `loss/<domain>`, `accuracy/<domain>`, `norm/<domain>`,
    `weight/<domain>`, `<homogenizer>/<name>`, `validation/score`, `test/score`, `test/loss`; characters that MLflow
    refuses become `_`.

    A run that goes on goes on in MLflow, too, by the id in the file `mlflow_run_id` of its folder. Steps after its
    last checkpoint are then recorded twice.
    """

    def __init__(
        self, config: Mapping[str, Any], folder: Path, experiment: str = "gradhomog", tracking_uri: str | None = None
    ) -> None:
        self.config, self.folder, self.experiment = config, folder, experiment
        self.client = MlflowClient(tracking_uri=tracking_uri)
        self.run_id = ""

    def __call__(self, event: str, record: Mapping[str, Any]) -> None:
        if event == "start":
            self.run_id = self._begin()
        step, now = record["steps"] if event == "result" else record["step"], int(time.time() * 1000)
        metrics = [Metric(_allowed(name), value, now, step) for name, value in scalars(event, record).items()]
        if metrics:
            self.client.log_batch(self.run_id, metrics=metrics)
        if event in ("result", "failed"):
            self.client.set_terminated(self.run_id, "FINISHED" if event == "result" else "FAILED")

    def _begin(self) -> str:
        path = self.folder / "mlflow_run_id"
        if path.exists():
            run_id = path.read_text().strip()
            self.client.update_run(run_id, status="RUNNING")
            return run_id
        run_id = self.client.create_run(self._experiment_id(), run_name=self.folder.name).info.run_id
        parameters = [Param(_allowed(name), str(value)) for name, value in _flat(self.config)]
        for start in range(0, len(parameters), PARAMETERS_AT_A_TIME):
            self.client.log_batch(run_id, params=parameters[start : start + PARAMETERS_AT_A_TIME])
        path.write_text(run_id)
        return str(run_id)

    def _experiment_id(self) -> str:
        if found := self.client.get_experiment_by_name(self.experiment):
            return str(found.experiment_id)
        try:
            return str(self.client.create_experiment(self.experiment))
        except MlflowException:
            if found := self.client.get_experiment_by_name(self.experiment):
                return str(found.experiment_id)  # another run has made it in the meantime
            raise


def _flat(content: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value


def _allowed(name: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", name)


@hookimpl
def gradhomog_observer() -> ObserverSpec:
    return ObserverSpec(factory=MLflow, summary="records each run in MLflow, with its configuration and metrics")
