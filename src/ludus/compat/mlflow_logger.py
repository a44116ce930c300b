"""The MLflow logger's vocabulary: `MLflowLogger`, for people who log from a loop of their own.

    logger = MLflowLogger(experiment_name="cartpole-ppo")
    logger.log_params({"learning_rate": 3e-4})
    logger.log_metrics({"avg_reward": 21.5}, step=10)
    logger.log_figure(figure, "training_curves/training_progress.png")
    logger.log_report({"converged": True})
    logger.log_model(agent)
    policy = logger.load_model(logger.register_model("cartpole-ppo-model"))
    logger.end_run()

A run of `ludus.Trainer` needs none of it: `tracking.mlflow=true` sends everything, from another process. Here each call
asks MLflow itself; one that fails is a warning, and the program goes on.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.runs.trackers.mlflow.names import LoggedMetric, allowed
from ludus.runs.trackers.mlflow.registry import SCHEME, Registry
from ludus.runs.trackers.mlflow.store import Store, StoreError
from ludus.types import LudusError

if TYPE_CHECKING:
    from ludus.algorithms.policy import Policy

MODEL, REGISTERED = "final_model", "registered_model"
REPORT = "performance_analysis/performance_report.json"


class MLflowLogger:
    """One MLflow run, in the store that `MLFLOW_TRACKING_URI` names or in files under `runs`."""

    def __init__(
        self, experiment_name: str = "cartpole-ppo", run_name: str | None = None, runs: str | Path = "runs"
    ) -> None:
        """Begin the run; without MLflow, or while its server is away, nothing is logged and nothing is broken."""
        self._store: Store | None = None
        self._run = self._experiment = ""
        self._runs, self._warned = Path(runs), False
        self._try(lambda: self._begin(experiment_name, run_name))

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
        points = [LoggedMetric(allowed(name), float(value), now, step) for name, value in metrics.items()]
        self._ask(lambda store: store.log(self._run, points))

    def log_artifact(self, path: str | Path, artifact_path: str = "") -> None:
        """Keep a file."""
        self._ask(lambda store: store.upload(self._run, Path(path), artifact_path))

    def log_figure(self, figure: object, artifact_file: str) -> None:
        """Keep a figure of Matplotlib's (as `.png`, ...) or Plotly's (as `.html`)."""
        self._ask(lambda store: store.upload_figure(self._run, figure, artifact_file))

    def log_report(self, report: object, artifact_file: str = REPORT) -> None:
        """Keep a report: a text as it is, anything else as JSON."""
        text = report if isinstance(report, str) else json.dumps(report, indent=1, default=str) + "\n"
        self._ask(lambda store: store.upload_text(self._run, text, artifact_file))

    def log_model(self, model: object, artifact_path: str = MODEL) -> None:
        """Keep a policy as a model that MLflow can serve.

        Args:
            model: a `ludus.Policy`, something that has one, such as a `PPOAgent` or a `ludus.Trainer`, or the path of
                a run folder or a policy file.
            artifact_path: the model's folder in the run.
        """
        self._ask(lambda store: self._upload(store, model, artifact_path))

    def register_model(self, name: str = "cartpole-ppo-model", artifact_path: str = MODEL) -> str:
        """Register the model that lies there as a new version of a name; return its address, "" if that failed."""
        made: list[str] = []
        self._ask(lambda store: made.append(self._registered(store, name, artifact_path)))
        return "".join(made)

    def load_model(self, address: str) -> "Policy | None":
        """Read a registered model back; nothing of it is executed. None while MLflow is away.

        The address is `models:/NAME/VERSION`, `models:/NAME@ALIAS`, or a name for its latest version.
        """
        found: list[Policy] = []
        self._ask(lambda store: found.append(self._fetched(store, address)))
        return found[0] if found else None

    def search_best_models(self, metric: str = "eval_avg_reward", max_results: int = 5) -> list[dict[str, Any]]:
        """Return the runs of the experiment that came highest by their latest value of a metric, best first."""
        found: list[dict[str, Any]] = []
        self._ask(lambda store: found.extend(store.best(self._experiment, metric, max_results)))
        return found

    def end_run(self, status: str = "FINISHED") -> None:
        """Say that the run is over."""
        self._ask(lambda store: store.set_status(self._run, status, time.time_ns() // 1_000_000))
        self._run = ""

    def _begin(self, experiment_name: str, run_name: str | None) -> None:
        self._runs.mkdir(parents=True, exist_ok=True)
        self._store = Store(self._runs)
        self._experiment = self._store.experiment(experiment_name)
        now = time.time_ns() // 1_000_000
        self._run = self._store.create(self._experiment, run_name or f"ppo_run_{now // 1000}", now, {}).id

    def _upload(self, store: Store, model: object, place: str) -> None:
        from ludus.algorithms.policy import Policy, load_policy, save_policy
        from ludus.export.mlflow_model import write_model
        from ludus.runs.folder import CONFIG

        is_path = isinstance(model, str | Path)
        policy = load_policy(model) if is_path else getattr(getattr(model, "agent", model), "policy", model)
        if not isinstance(policy, Policy):
            raise LudusError(f"log_model: {model!r} is no policy, has none and is no path of one")
        with tempfile.TemporaryDirectory(prefix="ludus-model-") as scratch:
            file, config, folder = (Path(scratch) / name for name in ("policy", CONFIG, "model"))
            save_policy(policy, file)
            known = Path(model) / CONFIG if is_path else config
            config.write_text(known.read_text() if known.is_file() else f"env: {json.dumps(policy.env_id)}\n")
            with store.asking():
                write_model(file, config, folder, self._run, place)
            store.upload_folder(self._run, folder, place)

    def _registered(self, store: Store, name: str, place: str) -> str:
        """Register a copy: a version must stay as it is, though another model be logged in its place."""
        copy = f"{REGISTERED}/{time.time_ns()}"
        with tempfile.TemporaryDirectory(prefix="ludus-model-") as scratch:
            store.upload_folder(self._run, store.download(f"runs:/{self._run}/{place}", Path(scratch)), copy)
        return str(Registry(store).register(name, self._run, f"runs:/{self._run}/{copy}", {}))

    def _fetched(self, store: Store, address: str) -> "Policy":
        from ludus.training.publish import fetch

        if not address.startswith(SCHEME):
            versions = Registry(store).versions(address)
            address = f"{SCHEME}{address}/{max((int(version.number) for version in versions), default=1)}"
        return fetch(address, self._runs)[0]

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
