"""MLflow, the real thing: what a run sends is read back through MLflow's own client."""

import json
import time
from pathlib import Path

import pytest

import ludus
from ludus.tracking.mlflow.cursor import CursorFiles
from ludus.tracking.mlflow.tracker import MLflowTracker
from ludus.tracking.run_folder import RunFolder, read_identity, read_journal
from ludus.tracking.tracker import TrackingOptions
from mlflow_server import Proxy, Reader, mlflow_server
from resume_runs import trainer

CONFIG = {
    "env": "jax:CartPole-v1", "seed": 7, "num_envs": 4, "env_options": {"max_episode_steps": 200}, "max_episodes": 40,
    "tracking": {"mlflow": True}, "algorithm": {"name": "ppo", "learning_rate": 3e-4, "network": {"sizes": [8, 8]}},
}  # fmt: skip


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as uri:
        yield uri


@pytest.fixture(scope="session")
def reader(server):
    return Reader(server)


@pytest.fixture
def proxy(server, monkeypatch):
    proxy = Proxy(server)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.uri)
    yield proxy
    proxy.close()


def rows(first: int, last: int, shift: float = 0.0) -> list[dict]:
    """Return rows of a journal, as an iteration makes them."""
    made = []
    for i in range(first, last):
        counts = {"iteration": i + 1, "steps": 64 * (i + 1), "episodes": 2 * (i + 1), "updates": 4 * (i + 1)}
        figures = {
            "episode_return_mean": 10.0 + i + shift,
            "episode_length_mean": 10.0 + i,
            "policy_loss": 0.5 / (i + 1),
        }
        made.append({"kind": "train", **counts, **figures, "elapsed_seconds": 0.25 * i, "steps_per_second": 99.0})
    return made


class Run:
    """A run folder that the test writes, with the tracker that a trainer would give it."""

    def __init__(self, path: Path):
        self.path, self.said = path, []
        self.folder = RunFolder(path)
        self.folder.create()
        self._begin()

    def _begin(self) -> None:
        self.folder.write_config({**CONFIG, "run_dir": str(self.path)})
        self.folder.write_identity(status="running", started=self.folder.identity.get("started", 1_700_000_000.5))
        self.tracker = MLflowTracker(self.said.append)
        self.tracker.begin(self.folder)

    def resume(self, kept: int) -> None:
        """Go on from an earlier row, as a checkpoint makes it."""
        lines = (self.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:kept]
        self.folder = RunFolder.reopen(self.path)
        self.folder.cut(kept, sum(map(len, lines)))
        self._begin()

    def append(self, some: list[dict]) -> None:
        self.folder.append(some)
        self.tracker.wake()

    def end(self, status: str = "finished") -> None:
        self.folder.write_identity(status=status)
        self.folder.close()
        self.tracker.end()

    def wait(self, condition, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            self.tracker.wake()
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)

    @property
    def sent(self) -> int:
        files = CursorFiles(self.path)
        cursor = files.load()
        return len(files.sent(cursor)) if cursor else 0

    @property
    def id(self) -> str:
        return read_identity(self.path)["id"]


def assert_complete(reader: Reader, run: Run) -> None:
    """Every row of the journal is in MLflow's latest run of it, once."""
    made = reader.runs(run.id)[-1]
    journal = [row for row in read_journal(run.path) if row["kind"] == "train"]
    for key in ("episode_return_mean", "avg_reward", "policy_loss", "steps_per_second"):
        name = {"avg_reward": "episode_return_mean"}.get(key, key)
        points = [(step, value) for step, value, _ in reader.points(made, key)]
        assert points == [(row["steps"], row[name]) for row in journal], key


@pytest.mark.requirement("S1.25")
def test_every_parameter_and_row_arrives_under_both_names(tmp_path, proxy, reader):
    run = Run(tmp_path / "first")
    run.append(rows(0, 60))
    run.end()
    (made,) = reader.runs(run.id)
    assert made.info.run_name == "first" and made.info.status == "FINISHED"
    assert made.info.start_time == 1_700_000_000_500
    assert reader.client.get_experiment(made.info.experiment_id).name == "cartpole-ppo"
    params = made.data.params
    assert params["algorithm.learning_rate"] == params["learning_rate"] == "0.0003"
    assert params["algorithm.network.sizes"] == "[8, 8]" and params["algorithm"] == "ppo"
    assert params["max_steps_per_episode"] == params["env_options.max_episode_steps"] == "200"
    assert params["max_episodes"] == "40" and params["seed"] == "7"
    assert made.data.tags["ludus.env"] == "jax:CartPole-v1" and made.data.tags["ludus.seed"] == "7"
    assert_complete(reader, run)
    assert reader.points(made, "avg_reward")[3] == (256, 13.0, 1_700_000_000_500 + 750)
    assert reader.points(made, "avg_reward_10")[-1][:2] == (3840, 67.0)  # 65 to 69
    assert len(reader.points(made, "avg_reward_50")) == 60 - 24
    assert made.data.metrics["total_episodes"] == 120 and made.data.metrics["converged"] == 0
    assert set(reader.artifacts(made)) == {"config.yaml", "run.json"}
    assert run.said == [f"MLflow: experiment cartpole-ppo at {proxy.uri}"]


def test_a_resumed_run_goes_on_in_the_same_mlflow_run(tmp_path, proxy, reader):
    run = Run(tmp_path / "resumed")
    run.append(rows(0, 30))
    run.wait(lambda: run.sent == 30)
    run.end("interrupted")
    assert reader.runs(run.id)[0].info.status == "KILLED"
    run.resume(20)
    again = [row | {"elapsed_seconds": 99.0, "steps_per_second": 1.0} for row in rows(20, 50)]  # it took longer
    run.append(again)
    run.end()
    (made,) = reader.runs(run.id)
    assert made.info.status == "FINISHED"
    points = reader.points(made, "avg_reward")
    assert [point[:2] for point in points] == [(row["steps"], row["episode_return_mean"]) for row in rows(0, 50)]


def test_rows_that_came_out_differently_are_another_mlflow_run(tmp_path, proxy, reader):
    run = Run(tmp_path / "other")
    run.append(rows(0, 30))
    run.wait(lambda: run.sent == 30)
    run.end("interrupted")
    run.resume(20)
    run.append(rows(20, 40, shift=0.5))
    run.end()
    old, new = reader.runs(run.id)
    assert old.info.status == "KILLED" and old.data.tags["ludus.superseded_by"] == new.info.run_id
    assert new.data.tags["ludus.continues"] == old.info.run_id
    assert len(reader.points(old, "avg_reward")) == 30
    assert_complete(reader, run)


@pytest.mark.requirement("S1.25")
def test_training_sends_its_run(tmp_path, proxy, reader, capsys):
    made = trainer("ppo jax", tmp_path / "trained", tracking=TrackingOptions(mlflow=True, tensorboard=False))
    made.train(total_steps=64 * 12)
    (run,) = reader.runs(read_identity(tmp_path / "trained")["id"])
    assert run.info.status == "FINISHED"
    journal = [row for row in read_journal(tmp_path / "trained") if row["kind"] == "train"]
    for ours, theirs in (("gradient_norm", "grad_norm"), ("approx_kl", "kl_divergence"), ("updates", "num_updates")):
        assert [value for _, value, _ in reader.points(run, theirs)] == [row[ours] for row in journal]
    assert [value for _, value, _ in reader.points(run, "entropy_loss")] == [-row["entropy"] for row in journal]
    evaluations = [row for row in read_journal(tmp_path / "trained") if row["kind"] == "evaluation"]
    assert [value for _, value, _ in reader.points(run, "eval_avg_reward")] == [
        row["eval_return_mean"] for row in evaluations
    ]
    assert len(evaluations) == 3
    assert "policies/final_actor.safetensors" in reader.artifacts(run)
    resumed = ludus.Trainer.resume(tmp_path / "trained", total_steps=64 * 16)
    resumed.final_episodes = 0
    resumed.train()
    (run,) = reader.runs(read_identity(tmp_path / "trained")["id"])
    assert run.data.tags["ludus.resumed_with.total_steps"] == "1024" and run.data.params["total_steps"] == "768"
    assert len(reader.points(run, "grad_norm")) == 16


def test_without_a_server_files_beside_the_run_are_the_store(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = Run(tmp_path / "local")
    run.append(rows(0, 10))
    run.end()
    reader = Reader(f"sqlite:///{tmp_path}/mlflow.db")
    assert_complete(reader, run)
    assert (tmp_path / "mlartifacts").is_dir()
    assert json.loads((tmp_path / "local" / "mlflow" / "cursor.json").read_text())["uri"].endswith("/mlflow.db")
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
