"""MLflow, the real thing: what a run sends is read back through MLflow's own client."""

import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

import numpy as np
import pytest
from mlflow_server import Proxy, Reader, mlflow_server, serving
from PIL import Image
from places import SUPPORT
from resume_runs import trainer

import ludus
from ludus.runs.folder import RunFolder, read_identity
from ludus.runs.journal import read_journal
from ludus.runs.trackers.base import TrackingOptions
from ludus.runs.trackers.cursor import CursorFiles
from ludus.runs.trackers.mlflow.tracker import MLflowTracker
from outages import outage

pytestmark = pytest.mark.slow

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

    def __init__(self, path: Path, **tracking: str):
        self.path, self.said, self.tracking = path, [], {"mlflow": True, **tracking}
        self.folder = RunFolder(path)
        self.folder.create()
        self._begin()

    def _begin(self) -> None:
        self.folder.write_config({**CONFIG, "run_dir": str(self.path), "tracking": self.tracking})
        self.folder.write_identity(status="running", started=self.folder.identity.get("started", 1_700_000_000.5))
        self.tracker = MLflowTracker(self.said.append)
        self.tracker.begin(self.folder)

    def resume(self, kept: int) -> None:
        """Go on from an earlier row, as a checkpoint makes it."""
        lines = (self.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)[:kept]
        self.folder = RunFolder.reopen(self.path)
        self.folder.journal.cut(kept, sum(map(len, lines)))
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
    reports = {"performance_analysis/performance_report.json", "dashboard/training_summary.json"}
    artifacts = set(reader.artifacts(made))
    assert {"config.yaml", "run.json", *reports} <= artifacts
    assert all(Path(name).suffix in (".png", ".html") for name in artifacts - {"config.yaml", "run.json", *reports})
    assert f"MLflow: experiment cartpole-ppo at {proxy.uri}" in run.said


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


def test_a_journal_that_ends_earlier_than_before_is_another_mlflow_run(tmp_path, proxy, reader):
    run = Run(tmp_path / "shorter")
    run.append(rows(0, 30))
    run.wait(lambda: run.sent == 30)
    run.end("interrupted")
    run.resume(20)
    run.append(rows(20, 25))
    run.end()
    old, new = reader.runs(run.id)
    assert (old.info.status, new.info.status) == ("KILLED", "FINISHED")
    assert_complete(reader, run)


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
    reader.client.delete_run(new.info.run_id)
    done = command("track", str(run.path))
    assert done.returncode == 2 and f"was deleted at {proxy.uri}" in done.stderr and done.stderr.count("\n") == 1


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
    best = read_identity(tmp_path / "trained")["best_avg_reward"]
    assert best == made.judge.convergence.best_avg_reward == run.data.metrics["best_avg_reward"]
    summary = json.loads((tmp_path / "trained/report/training_summary.json").read_text())
    assert summary["best_avg_reward"] == best
    resumed = ludus.Trainer.resume(tmp_path / "trained", total_steps=64 * 16)
    resumed.final_episodes = 0
    resumed.train()
    (run,) = reader.runs(read_identity(tmp_path / "trained")["id"])
    assert run.data.tags["ludus.resumed_with.total_steps"] == "1024" and run.data.params["total_steps"] == "768"
    assert len(reader.points(run, "grad_norm")) == 16


@pytest.mark.requirement("S1.25")
def test_figures_arrive_by_themselves_and_need_no_browser(tmp_path, proxy, reader, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # where there is no Chromium
    run = Run(tmp_path / "drawn")
    run.append([row | {"approx_kl": 0.01, "entropy": 0.5, "success_rate": 0.0} for row in rows(0, 30)])
    run.end()
    (made,) = reader.runs(run.id)
    there = set(reader.artifacts(made))
    for name in (
        "episode_progress/step_1920", "loss_curves/step_1920", "kl_divergence/step_1920",
        "learning_analysis/advanced_learning_curves", "stability_analysis/training_stability",
        "training_curves/training_progress", "comprehensive_analysis/episode_statistics",
        "comprehensive_analysis/training_summary", "episode_returns",
    ):  # fmt: skip
        assert f"{name}.png" in there
    assert {"report/index.html", "performance_analysis/performance_report.json"} <= there
    with Image.open(run.path / "report/figures/episode_returns.png") as picture:
        assert picture.format == "PNG" and len(picture.convert("RGB").getcolors(1 << 20)) > 50
    assert "plotly" in (run.path / "report/index.html").read_text()


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


def command(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "ludus", *words], capture_output=True, text=True, check=False)


def track(run: Path) -> str:
    done = command("track", str(run))
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """Two runs with a policy each: one has learnt nothing, the other CartPole."""
    folder = tmp_path_factory.mktemp("policies")
    common = ["train", "env=CartPole-v1", "verbose=false", "tracking.tensorboard=false"]
    assert command(*common, "total_steps=1", f"run_dir={folder}/weak").returncode == 0
    assert command(*common, "total_steps=40000", f"run_dir={folder}/strong").returncode == 0
    return folder


def converged(policies: Path, name: str, run: Path) -> Path:
    """Return a copy of a run, with an identity of its own, that says it has converged."""
    shutil.copytree(policies / name, run)
    identity = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**identity, "id": uuid.uuid4().hex, "converged": True}))
    return run


@pytest.mark.requirement("S1.26")
@pytest.mark.requirement("S1.22")
def test_the_champion_is_the_one_that_beats_the_champion(tmp_path, policies, proxy, reader, monkeypatch):
    name = "cartpole-ppo-model"
    weak, same, strong = (
        converged(policies, kind, tmp_path / run) for run, kind in (("a", "weak"), ("b", "weak"), ("c", "strong"))
    )
    assert "models:/cartpole-ppo-model/1 is champion: there was none before" in track(weak)
    told = track(same)
    assert "/2 is challenger" in told and "difference +0.00" in told
    assert "/3 is champion" in track(strong)
    assert "/3 is registered" in track(strong)  # once is enough
    model = reader.client.get_registered_model(name)
    assert model.aliases == {"champion": "3", "challenger": "2"}
    version = reader.client.get_model_version_by_alias(name, "champion")
    assert version.tags["ludus.gate"].startswith("champion: ") and "95% interval" in version.description
    (run,) = reader.runs(read_identity(strong)["id"])
    assert version.run_id == run.info.run_id
    assert {"final_model/MLmodel", "final_model/artifacts/policy.safetensors"} <= set(reader.artifacts(run))

    done = command("evaluate", f"models:/{name}@champion", "--json", "--episodes", "20")
    best = strong / "policies" / "best_eval_pi_ckpt.safetensors"
    env = ludus.make_env("CartPole-v1", num_envs=8)
    expected = ludus.evaluate(ludus.load_policy(best), env, 20).summary()
    assert json.loads(done.stdout)["mean_return"] == expected["mean_return"], done.stderr

    observations = np.random.default_rng(0).normal(0, 0.5, (32, 4)).astype(np.float32)
    actions = ludus.load_policy(best)(observations)
    assert 0 < actions.sum() < 32
    np.save(tmp_path / "observations.npy", observations)
    loading = (
        "import mlflow, numpy; model = mlflow.pyfunc.load_model('models:/cartpole-ppo-model@champion');"
        "print(model.predict(numpy.load('observations.npy')).tolist()); print(model.metadata.signature)"
    )
    fresh = subprocess.run([sys.executable, "-c", loading], cwd=tmp_path, capture_output=True, text=True, check=True)
    first, *rest = fresh.stdout.splitlines()
    assert json.loads(first) == actions.tolist()
    assert "Tensor('float32', (-1, 4))" in "".join(rest) and "Tensor('int32', (-1,))" in "".join(rest)
    serve = ["mlflow", "models", "serve", "--env-manager", "local", "-m", f"models:/{name}@champion"]
    with serving(tmp_path, serve, "/ping") as uri:
        body = json.dumps({"inputs": observations.tolist()}).encode()
        request = urllib.request.Request(f"{uri}/invocations", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["predictions"] == actions.tolist()


OUTAGES = {
    "refused": ("refuse", 0.0), "errors": ("error", 0.0), "lost answers": ("lost", 0.0), "hangs": ("hang", 0.0),
    "slow": ("slow", 17.0), "no right": ("auth", 0.0),
}  # fmt: skip


@pytest.mark.requirement("S1.28")
def test_whatever_happens_to_the_server_every_row_arrives_once(tmp_path, server, reader, monkeypatch):
    runs = {}
    for name in OUTAGES:
        proxy = Proxy(server)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.uri)
        if name == "refused":
            proxy.set("refuse")  # from the start
        runs[name] = Run(tmp_path / name.replace(" ", "-")), proxy
    for name, (run, proxy) in runs.items():
        run.append(rows(0, 40))
        if name != "refused":
            run.wait(lambda run=run: run.sent == 40)
            proxy.set(*OUTAGES[name])
            run.append(rows(40, 80))
    for run, _ in runs.values():
        run.wait(lambda run=run: any("training goes on" in line for line in run.said))
    for run, proxy in runs.values():
        proxy.set("pass")
        run.append(rows(run.folder.journal.rows, 100))
    for name, (run, _) in runs.items():
        run.wait(lambda run=run: run.sent == 100)
        run.end()
        assert_complete(reader, run)
        news = ["training goes on" in line for line in run.said if "training goes on" in line or "works again" in line]
        assert news == [True, False] * (len(news) // 2) and news, (name, run.said)  # each trouble is said once
        assert [made.info.status for made in reader.runs(run.id)] == ["FINISHED"], name
    for _, proxy in runs.values():
        proxy.close()


@pytest.mark.requirement("S1.28")
def test_training_goes_on_while_the_server_comes_and_goes(tmp_path, server, reader, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)  # it is put back afterwards
    row = outage(2, server, reader, tmp_path)
    assert row["failure"] is None, row
    assert row["kind"] == "comes and goes" and row["rows"] > 1


@pytest.mark.requirement("S1.28")
def test_a_run_whose_server_never_answers_is_sent_later(tmp_path, proxy, reader):
    proxy.set("refuse")
    run = Run(tmp_path / "late")
    begun = time.perf_counter()
    for some in np.array_split(np.arange(200), 50):
        run.append(rows(int(some[0]), int(some[-1]) + 1))
    assert time.perf_counter() - begun < 0.5  # training does not wait
    process, begun = run.tracker.companion.process, time.perf_counter()
    run.end()
    assert time.perf_counter() - begun < 8  # two seconds, and a busy machine
    assert process.returncode == 0
    assert f"200 rows have not arrived; ludus track {run.path.absolute()} sends the rest" in run.said[-1]
    assert sum("ludus track" in line for line in run.said) == 1
    failed = command("track", str(run.path))
    assert failed.returncode == 2 and failed.stderr.startswith("ludus: MLflow at") and failed.stderr.count("\n") == 1
    proxy.set("pass")
    assert "all 200 rows are in experiment cartpole-ppo" in track(run.path)
    assert_complete(reader, run)
    assert "all 200 rows are in" in track(run.path)
    assert_complete(reader, run)


@pytest.mark.requirement("S1.28")
@pytest.mark.parametrize("mode", ["hang", "error", "lost"])
def test_a_server_that_stops_answering_holds_nobody_up_at_the_end(tmp_path, proxy, mode):
    run = Run(tmp_path / mode)
    run.append(rows(0, 20))
    run.wait(lambda: run.sent == 20)
    proxy.set(mode)
    run.append(rows(20, 30))
    time.sleep(1.5)  # a request that takes long is under way
    process, begun = run.tracker.companion.process, time.perf_counter()
    run.end()
    assert time.perf_counter() - begun < 8
    assert process.returncode == 0
    told = [line for line in run.said if "ludus track" in line]
    assert len(told) == 1 and "10 rows have not arrived" in told[0]


@pytest.mark.requirement("S1.28")
def test_a_trainer_that_was_killed_leaves_no_process_that_waits_for_a_server(tmp_path, proxy):
    proxy.set("hang")
    tracker = killed_trainer(tmp_path / "dead")
    deadline = time.monotonic() + 15
    while is_running(tracker):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_killed_at_any_moment_no_row_is_lost_or_doubled(tmp_path, proxy, reader):
    """The process that sends, killed while an answer is on its way, and before it knows anything."""
    run = Run(tmp_path / "killed")
    run.append(rows(0, 50))
    run.wait(lambda: run.sent == 50)
    proxy.set("lost")
    run.append(rows(50, 90))
    run.wait(lambda: CursorFiles(run.path).load().sending.first == 50)
    run.wait(lambda: any("training goes on" in line for line in run.said))
    run.tracker.companion.process.kill()
    run.wait(lambda: run.tracker.companion.process is None)
    assert "its process ended with code -9" in run.said[-1]
    run.end("interrupted")
    proxy.set("pass")
    run.resume(60)  # rows 60 to 90 come again, and took another time
    run.append([row | {"elapsed_seconds": 50.0, "steps_per_second": 3.0} for row in rows(60, 100)])
    run.end()
    (made,) = reader.runs(run.id)
    points = [point[:2] for point in reader.points(made, "avg_reward")]
    assert points == [(row["steps"], row["episode_return_mean"]) for row in rows(0, 100)]


SLOW = """
import sys, time
from pathlib import Path
from ludus.training import tracking_process as process

process.Follow.finish = lambda *_: time.sleep(process.LAST_SECONDS + 1.0)  # until the other thread has the last word
process.Sender.missing = lambda self: time.sleep(2.0) or 25
process.main()
"""


def test_a_process_that_says_its_last_words_is_not_ended_before_they_are_said(tmp_path, proxy):
    proxy.set("hang")
    run = Run(tmp_path / "late")
    run.end()
    done = subprocess.run(
        [sys.executable, "-c", SLOW, str(run.path)],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    assert "25 rows have not arrived" in done.stdout.splitlines()[-1]


def killed_trainer(run: Path) -> int:
    """Let a trainer be killed; return the number of the process that sends its run."""
    script = (
        "import os, sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path; from test_mlflow import Run, rows\n"
        "run = Run(Path(sys.argv[1])); run.append(rows(0, 25)); print(run.tracker.companion.process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    words = [sys.executable, "-c", script, str(run), str(SUPPORT), str(Path(__file__).parent)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return int(done.stdout)


def is_running(process: int) -> bool:
    return Path(f"/proc/{process}").exists() and "Z" not in Path(f"/proc/{process}/stat").read_text()


def test_the_tracker_of_a_trainer_that_was_killed_sends_the_rest_and_ends(tmp_path, proxy, reader):
    tracker, deadline = killed_trainer(tmp_path / "dead"), time.monotonic() + 60
    while is_running(tracker):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    (made,) = reader.runs(read_identity(tmp_path / "dead")["id"])
    assert len(reader.points(made, "avg_reward")) == 25 and made.info.status == "KILLED"


@pytest.mark.requirement("S1.28")
def test_an_experiment_that_was_deleted_costs_one_line(tmp_path, proxy, reader):
    reader.client.delete_experiment(reader.client.create_experiment("gone"))
    run = Run(tmp_path / "gone", experiment="gone")
    run.append(rows(0, 5))
    run.wait(lambda: run.said)
    run.append(rows(5, 9))
    run.end()
    assert [line.split(";")[0] for line in run.said] == [
        "tracking.experiment=gone: was deleted in MLflow", "MLflow: 9 rows have not arrived"
    ]  # fmt: skip
    done = command("track", str(run.path))
    assert done.returncode == 2 and "tracking.experiment=gone: was deleted in MLflow" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("uri", ["nonsense://here", "file:///tmp/store", "http://127.0.0.1:1/"])
def test_a_store_that_cannot_be_used_costs_one_line(tmp_path, uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1/")
    run = Run(tmp_path / "bad")
    run.tracker.companion.process.kill()
    run.end("failed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    done = command("track", str(run.path))
    assert done.returncode == 2 and done.stderr.startswith("ludus: MLflow at") and done.stderr.count("\n") == 1


SECRETS = {
    "MLFLOW_TRACKING_USERNAME": "canary-user-1f", "MLFLOW_TRACKING_PASSWORD": "canary pass/2f",
    "MLFLOW_TRACKING_TOKEN": "canary-token-3f", "AWS_SECRET_ACCESS_KEY": "canary-aws-4f", "MY_OWN": "canary-own-5f",
}  # fmt: skip


@pytest.mark.requirement("S1.25")
def test_no_secret_is_written_or_said(tmp_path, server, reader, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    proxy = Proxy(server)
    monkeypatch.setenv(
        "MLFLOW_TRACKING_URI", proxy.uri.replace("://", "://canary-uri:canary-word@") + "/?key=canary-key"
    )
    run = Run(tmp_path / "quiet")
    run.append(rows(0, 20))
    run.end()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", proxy.uri.replace("://", "://canary-uri:canary-word@"))
    for mode in ("auth", "refuse", "pass"):
        proxy.set(mode)
        done = command("track", str(run.path))
        run.said += [done.stdout, done.stderr]
    proxy.close()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"canary" not in written
    assert "canary" not in "".join(run.said)
    (made,) = reader.runs(run.id)
    assert "canary" not in str(made.to_dictionary())
    assert_complete(reader, run)


@pytest.mark.requirement("S1.27")
def test_without_mlflow_nothing_needs_it(tmp_path):
    code = (
        "import sys; sys.modules['mlflow'] = None; from ludus.cli.main import main\n"
        "words = ['train', 'env=CartPole-v1', 'total_steps=1', 'verbose=false', 'run_dir=' + sys.argv[1]]\n"
        "assert main([*words, 'tracking.mlflow=false', 'tracking.tensorboard=false']) == 0\n"
        "for words in ([*words[:-1], words[-1] + '-b', 'tracking.mlflow=true'], ['track', sys.argv[1]],\n"
        "              ['evaluate', 'models:/a@champion']):\n"
        "    assert main(words) == 2"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count('pip install "ludus[mlflow]"') == done.stderr.count("\n") == 3
    assert not (tmp_path / "run-b").exists()
