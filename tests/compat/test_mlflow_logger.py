"""`MLflowLogger`: a run of one's own in a real store, and nothing broken without one."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.requirement("S1.1")]

LOGGING = """
import json
from pathlib import Path
from ludus.compat.mlflow_logger import MLflowLogger

Path("notes.txt").write_text("kept")
for reward in (100.0, 300.0, 200.0):
    logger = MLflowLogger(experiment_name="cartpole-ppo")
    logger.log_params({"learning_rate": 3e-4})
    logger.log_metrics({"avg_reward": 21.5}, step=10)
    logger.log_metrics({"eval_avg_reward": reward}, step=20)
    logger.log_artifact("notes.txt")
    if reward < 200:
        logger.end_run()
found = logger.search_best_models()
runs = logger._store.client.search_runs([logger._experiment], order_by=["attributes.start_time ASC"])
files = [file.path for file in logger._store.client.list_artifacts(runs[0].info.run_id)]
print(json.dumps({
    "best": [run["eval_avg_reward"] for run in found],
    "params": runs[0].data.params, "metrics": runs[0].data.metrics, "status": runs[0].info.status, "files": files,
    "is_logging": logger.is_logging,
}))
"""


MODELS = """
import json
import matplotlib.figure
import ludus
import numpy as np
from ludus.compat.mlflow_logger import MLflowLogger
from ludus.compat.ppo_trainer import PPOAgent

agent, other = PPOAgent(4, 2, seed=1), PPOAgent(4, 2, seed=2)
logger = MLflowLogger()
figure = matplotlib.figure.Figure()
figure.subplots().plot([1.0, 2.0])
logger.log_figure(figure, "training_curves/training_progress.png")
logger.log_report({"converged": True, "mean": np.float32(0.5)})
logger.log_report("All is well.", "notes/summary.txt")
addresses = []
for model in (agent, other.agent.policy, agent.save_policy_net("actor")):
    logger.log_model(model)
    addresses.append(logger.register_model("cartpole-ppo-model"))
policy = logger.load_model(addresses[0])
client, run = logger._store.client, logger._run
def files(folder=None):
    parts = client.list_artifacts(run, folder)
    return [path for part in parts for path in (files(part.path) if part.is_dir else [part.path])]
obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
second, latest = (logger.load_model(address) for address in (addresses[1], "cartpole-ppo-model"))
try:
    logger.load_model("nobody")
    refused = ""
except ludus.LudusError as error:
    refused = str(error)
print(json.dumps({
    "files": files(), "addresses": addresses, "refused": refused,
    "same": bool((latest(obs) == agent.agent.policy(obs)).all() and (second(obs) == other.agent.policy(obs)).all()),
    "type": type(policy).__name__,
    "report": json.loads(open(client.download_artifacts(run, "performance_analysis/performance_report.json")).read()),
}))
"""


def python(code: str, cwd, **environment) -> subprocess.CompletedProcess:
    known = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=known | environment, capture_output=True, text=True, check=False
    )


def test_what_is_logged_is_in_the_store(tmp_path):
    done = python(LOGGING, tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["best"] == [300.0, 200.0, 100.0]
    assert told["params"] == {"learning_rate": "0.0003"} and told["files"] == ["notes.txt"]
    assert told["metrics"] == {"avg_reward": 21.5, "eval_avg_reward": 100.0} and told["status"] == "FINISHED"
    assert told["is_logging"] and (tmp_path / "runs" / "mlflow.db").exists()


@pytest.mark.requirement("S1.25", "S1.26")
def test_figures_reports_and_models_are_kept_registered_and_read_back(tmp_path):
    done = python(MODELS, tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {"training_curves/training_progress.png", "notes/summary.txt", "final_model/MLmodel"} <= set(told["files"])
    assert told["addresses"] == [f"models:/cartpole-ppo-model/{n}" for n in (1, 2, 3)]
    assert told["same"] and told["type"] == "Policy" and told["report"] == {"converged": True, "mean": "0.5"}
    assert "models:/nobody/1: there is no such model" in told["refused"] and not done.stderr


@pytest.mark.requirement("S1.27", "S1.28")
@pytest.mark.parametrize("trouble", ["no server", "no mlflow"])
def test_without_mlflow_there_is_one_warning_and_the_program_goes_on(tmp_path, trouble):
    block = "import sys; sys.modules['mlflow'] = None\n" if trouble == "no mlflow" else ""
    code = f"""{block}
from ludus.compat.mlflow_logger import MLflowLogger
logger = MLflowLogger()
logger.log_params({{"a": 1}})
logger.log_metrics({{"b": 2.0}})
assert not logger.is_logging and logger.search_best_models() == []
logger.log_figure(None, "a.png")
logger.log_report({{}})
logger.log_model("nowhere")
assert logger.register_model() == "" and logger.load_model("models:/a/1") is None
logger.end_run()
print("done")
"""
    done = python(code, tmp_path, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert done.stderr.count("\n") == 1 and "goes on without" in done.stderr
