"""The observer `mlflow`: each run as a run of MLflow, with its configuration and metrics."""

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

PARAMETERS_PER_REQUEST = 100
"""MLflow's limit on the parameters of one request."""


class MLflow:
    """Record a run of gradhomog as a run of MLflow: the configuration as parameters, numbers as metrics.

    Args:
        experiment: name of the MLflow experiment; created if missing.
        tracking_uri: URI of the server or store; defaults to MLflow's default, the environment variable
            `MLFLOW_TRACKING_URI`.

    Names of metrics: `loss/mean`, `cosine/mean`, `loss/<domain>`, `accuracy/<domain>`, `norm/<domain>`,
    `weight/<domain>`, `<homogenizer>/<name>`, `validation/score`, `test/score`, `test/loss`; characters that MLflow
    does not allow become `_`.

    A resumed run continues its MLflow run, by the id in the file `mlflow_run_id` of its folder. Steps after the last
    checkpoint are then recorded twice.
    """

    def __init__(
        self, config: Mapping[str, Any], folder: Path, experiment: str = "gradhomog", tracking_uri: str | None = None
    ) -> None:
        self.config, self.folder, self.experiment = config, folder, experiment
        self.client = MlflowClient(tracking_uri=tracking_uri)
        self.run_id = ""

    def __call__(self, event: str, record: Mapping[str, Any]) -> None:
        if event == "start":
            self.run_id = self._start_run()
        step, now = record["steps"] if event == "result" else record["step"], int(time.time() * 1000)
        metrics = [Metric(_allowed_name(name), value, now, step) for name, value in scalars(event, record).items()]
        if metrics:
            self.client.log_batch(self.run_id, metrics=metrics)
        if event in ("result", "failed"):
            self.client.set_terminated(self.run_id, "FINISHED" if event == "result" else "FAILED")

    def _start_run(self) -> str:
        path = self.folder / "mlflow_run_id"
        if path.exists():
            run_id = path.read_text().strip()
            self.client.update_run(run_id, status="RUNNING")
            return run_id
        run_id = self.client.create_run(self._experiment_id(), run_name=self.folder.name).info.run_id
        parameters = [Param(_allowed_name(name), str(value)) for name, value in _flatten(self.config)]
        for start in range(0, len(parameters), PARAMETERS_PER_REQUEST):
            self.client.log_batch(run_id, params=parameters[start : start + PARAMETERS_PER_REQUEST])
        path.write_text(run_id)
        return str(run_id)

    def _experiment_id(self) -> str:
        if existing := self.client.get_experiment_by_name(self.experiment):
            return str(existing.experiment_id)
        try:
            return str(self.client.create_experiment(self.experiment))
        except MlflowException:
            if existing := self.client.get_experiment_by_name(self.experiment):
                return str(existing.experiment_id)  # another run has created it in the meantime
            raise


def _flatten(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _allowed_name(name: str) -> str:
    return re.sub(r"[^\w\-. :/]", "_", name)


@hookimpl
def gradhomog_observer() -> ObserverSpec:
    return ObserverSpec(factory=MLflow, summary="records each run in MLflow, with its configuration and metrics")
