"""`MLflowLogger`: a run of one's own in a real store, and nothing broken without one."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.requirement("S1.1")

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
logger.end_run()
print("done")
"""
    done = python(code, tmp_path, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert done.stderr.count("\n") == 1 and "goes on without" in done.stderr
