"""The MLflow logger's vocabulary: `MLflowLogger`, for people who log from a loop of their own.

    logger = MLflowLogger(experiment_name="cartpole-ppo")
    logger.log_params({"learning_rate": 3e-4})
    logger.log_metrics({"avg_reward": 21.5}, step=10)
    logger.end_run()

A run of `ludus.Trainer` needs none of it: `tracking.mlflow=true` sends everything, from another process. Here each call
asks MLflow itself; one that fails is a warning, and the program goes on.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ludus.tracking.mlflow.names import Metric, allowed
from ludus.tracking.mlflow.store import Store, StoreError


class MLflowLogger:
    """One MLflow run, in the store that `MLFLOW_TRACKING_URI` names or in files under `runs`."""

    def __init__(
        self, experiment_name: str = "cartpole-ppo", run_name: str | None = None, runs: str | Path = "runs"
    ) -> None:
        """Begin the run; without MLflow, or while its server is away, nothing is logged and nothing is broken."""
        self._store: Store | None = None
        self._run = self._experiment = ""
        self._warned = False
        self._try(lambda: self._begin(experiment_name, run_name, Path(runs)))

    @property
    def is_logging(self) -> bool:
        """Whether there is a run that is logged to."""
        return bool(self._run)

    def log_params(self, params: dict[str, Any]) -> None:
        """Record settings."""
        self._ask(lambda store: store.describe(self._run, {allowed(k): str(v) for k, v in params.items()}, {}))

    def log_metrics(self, metrics: dict[str, float], step: int = 0) -> None:
        """Record one point of each curve."""
        now = time.time_ns() // 1_000_000
        points = [Metric(allowed(name), float(value), now, step) for name, value in metrics.items()]
        self._ask(lambda store: store.log(self._run, points))

    def log_artifact(self, path: str | Path, artifact_path: str = "") -> None:
        """Keep a file."""
        self._ask(lambda store: store.upload(self._run, Path(path), artifact_path))

    def search_best_models(self, metric: str = "eval_avg_reward", max_results: int = 5) -> list[dict[str, Any]]:
        """Return the runs of the experiment that came highest by their latest value of a metric, best first."""
        found: list[dict[str, Any]] = []
        self._ask(lambda store: found.extend(store.best(self._experiment, metric, max_results)))
        return found

    def end_run(self, status: str = "FINISHED") -> None:
        """Say that the run is over."""
        self._ask(lambda store: store.set_status(self._run, status, time.time_ns() // 1_000_000))
        self._run = ""

    def _begin(self, experiment_name: str, run_name: str | None, runs: Path) -> None:
        runs.mkdir(parents=True, exist_ok=True)
        self._store = Store(runs)
        self._experiment = self._store.experiment(experiment_name)
        now = time.time_ns() // 1_000_000
        self._run = self._store.create(self._experiment, run_name or f"ppo_run_{now // 1000}", now, {}).id

    def _ask(self, call: Callable[[Store], None]) -> None:
        store = self._store
        if store is not None and self._run:
            self._try(lambda: call(store))

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except (StoreError, OSError) as error:
            if not self._warned:
                print(f"MLflow: {error}; the program goes on without", file=sys.stderr)
            self._warned = True
