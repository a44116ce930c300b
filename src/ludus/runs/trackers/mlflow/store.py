"""The one file that speaks to MLflow: a store is what `MLFLOW_TRACKING_URI` names, or files beside the run."""

import contextlib
import fcntl
import io
import logging
import os
import warnings
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ludus.runs.trackers.mlflow.names import LoggedMetric
from ludus.runs.trackers.mlflow.reach import URI
from ludus.runs.trackers.mlflow.redaction import reason, without_credentials
from ludus.runtime import files
from ludus.types import LudusError

PATIENCE = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_UV_AUTO_DETECT": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""MLflow by itself tries for minutes before it says that a server does not answer; who waits here knows better."""
MOST_METRICS, MOST_SETTINGS = 1000, 100
"""MLflow takes no more in one request."""
FOR_GOOD = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "BAD_REQUEST", "FEATURE_DISABLED"}
"""Answers that trying again will not change."""
RUN_ID = "ludus.run_id"
LOCAL_FILES, LOCAL_STORE, LOCK = "mlartifacts", "mlflow.db", ".mlflow.lock"

T = TypeVar("T")


class StoreError(LudusError):
    """MLflow cannot be used; `is_final` if it will not help to try again."""

    def __init__(self, text: str, is_final: bool):
        """Say why."""
        super().__init__(text)
        self.is_final = is_final


class Found(NamedTuple):
    """A run as MLflow knows it."""

    id: str
    started: int
    is_empty: bool
    parameters: dict[str, str]


class Store:
    """MLflow's tracking store and registry."""

    def __init__(self, runs: Path):
        """Connect; `runs` is the folder for a store of our own, if none is named."""
        named = os.environ.get(URI)
        self.uri = named or f"sqlite:///{runs.absolute() / LOCAL_STORE}"
        self.files = None if named else (runs.absolute() / LOCAL_FILES).as_uri()
        with self.asking():
            if not named:
                _make_private(runs)
            import mlflow

            for name in ("mlflow", "alembic"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
            with _alone(None if named else runs / LOCK):  # two that make the tables at once would fail
                self.client = mlflow.MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
                self.client.search_experiments(max_results=1)

    @property
    def name(self) -> str:
        """The address, without credentials."""
        return without_credentials(self.uri)

    def experiment(self, name: str) -> str:
        """Return the id of an experiment; it is made if there is none."""
        with self.asking():
            found = self.client.get_experiment_by_name(name)
            if found is None:
                return self.client.create_experiment(name, artifact_location=self.files)
        if found.lifecycle_stage != "active":
            raise StoreError(
                f"tracking.experiment={name}: was deleted in MLflow; name another, or bring it back "
                f"(mlflow experiments restore --experiment-id {found.experiment_id})",
                is_final=True,
            )
        return found.experiment_id

    def find(self, experiment: str, identity: str) -> list[Found]:
        """Return the runs of an experiment that belong to a run of ours, the latest first."""
        with self.asking():
            runs = self.client.search_runs(
                [experiment], f"tags.`{RUN_ID}` = '{identity}'", order_by=["attributes.start_time DESC"]
            )
        return [_found(run) for run in runs]

    def create(self, experiment: str, name: str, started: int, tags: dict[str, str]) -> Found:
        """Make a run."""
        with self.asking():
            return _found(self.client.create_run(experiment, start_time=started, run_name=name, tags=tags))

    def get(self, run: str) -> Found:
        """Return a run that is there; a deleted one is not."""
        with self.asking():
            found = self.client.get_run(run)
        if found.info.lifecycle_stage != "active":
            raise StoreError(f"the run {run} was deleted at {self.name}; restore it there", is_final=True)
        return _found(found)

    def best(self, experiment: str, metric: str, most: int) -> list[dict[str, Any]]:
        """Return the runs with the highest latest value of a metric, best first."""
        with self.asking():
            runs = self.client.search_runs([experiment], max_results=most, order_by=[f"metrics.`{metric}` DESC"])
        known = [run for run in runs if metric in run.data.metrics]
        return [
            {"run_id": run.info.run_id, "name": run.info.run_name, metric: run.data.metrics[metric]} for run in known
        ]

    def delete(self, run: str) -> None:
        """Delete a run."""
        with self.asking():
            self.client.delete_run(run)

    def log(self, run: str, metrics: Sequence[LoggedMetric]) -> None:
        """Add points to the curves of a run; those that are there already stay as they are."""
        from mlflow.entities import Metric as Point

        for part in _parts(metrics, MOST_METRICS):
            with self.asking():
                self.client.log_batch(run, metrics=[Point(*metric) for metric in part])

    def describe(self, run: str, parameters: dict[str, str], tags: dict[str, str]) -> None:
        """Set parameters, which cannot be changed later, and tags."""
        from mlflow.entities import Param, RunTag

        for part in _parts(list(parameters.items()), MOST_SETTINGS):
            with self.asking():
                self.client.log_batch(run, params=[Param(*pair) for pair in part])
        for part in _parts(list(tags.items()), MOST_SETTINGS):
            with self.asking():
                self.client.log_batch(run, tags=[RunTag(*pair) for pair in part])

    def set_status(self, run: str, status: str, ended: int | None = None) -> None:
        """Say how a run stands."""
        with self.asking():
            if status == "RUNNING":
                self.client.update_run(run, status=status)
            else:
                self.client.set_terminated(run, status=status, end_time=ended)

    def upload(self, run: str, file: Path, folder: str) -> None:
        """Keep a file with a run."""
        with self.asking():
            self.client.log_artifact(run, str(file), folder or None)

    def upload_folder(self, run: str, folder: Path, place: str) -> None:
        """Keep all files of a folder with a run."""
        with self.asking():
            self.client.log_artifacts(run, str(folder), place)

    def upload_figure(self, run: str, figure: Any, file: str) -> None:
        """Keep a figure of Matplotlib's or Plotly's with a run, as a file of that name."""
        with self.asking():
            self.client.log_figure(run, figure, file)

    def upload_text(self, run: str, text: str, file: str) -> None:
        """Keep a text with a run, as a file of that name."""
        with self.asking():
            self.client.log_text(run, text, file)

    def download(self, address: str, folder: Path) -> Path:
        """Fetch a file."""
        from mlflow.artifacts import download_artifacts

        with self.asking():
            return Path(download_artifacts(address, dst_path=str(folder), tracking_uri=self.uri))

    @contextlib.contextmanager
    def asking(self) -> Generator[None]:
        """Let MLflow print nothing, for it prints addresses with their passwords; make its mistakes one line."""
        nowhere = io.StringIO()
        try:
            with (
                _in_environment(PATIENCE),
                contextlib.redirect_stdout(nowhere),
                contextlib.redirect_stderr(nowhere),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")
                yield
        except LudusError:
            raise
        except ImportError as error:
            raise StoreError(f"MLflow cannot be imported ({reason(error)})", is_final=True) from None
        except Exception as error:  # MLflow lets errors of many libraries through
            code = getattr(error, "error_code", "")
            raise StoreError(f"MLflow at {self.name}: {reason(error)}", is_final=code in FOR_GOOD) from None


def _found(run: Any) -> Found:
    data, info = run.data, run.info
    return Found(info.run_id, info.start_time, not data.metrics, dict(data.params))


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[i : i + size] for i in range(0, len(items), size))


def _make_private(runs: Path) -> None:
    """Make the files of a store of our own, which MLflow would let everybody read."""
    files.make_folder(runs.absolute() / LOCAL_FILES)
    os.close(os.open(runs / LOCAL_STORE, os.O_RDWR | os.O_CREAT, 0o600))


@contextlib.contextmanager
def _in_environment(values: dict[str, str]) -> Generator[None]:
    """Set variables of the environment for a while: it is the user's."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _alone(lock: Path | None) -> Generator[None]:
    """Let other processes of ours wait until this one is done."""
    if lock is None:
        yield
        return
    file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
