"""A signal ends a run with everything saved; a second one ends it at once; nothing is left running."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from places import SUPPORT
from signal_runs import AT_ONCE_SECONDS, CASES, SAVED_SECONDS

pytestmark = pytest.mark.slow

SLACK = 4.0
"""Seconds that a busy machine may add."""


def test_signals_at_random_moments_save_the_run_and_the_second_ends_it_at_once(tmp_path):
    script = SUPPORT / "signal_runs.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "8"],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row for row in rows if row["failure"]] == []
    assert len(rows) == 8
    assert {row["kind"] for row in rows} == {"SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP", "twice"}
    assert max(row["seconds"] for row in rows) < SAVED_SECONDS
    assert max(row["seconds"] for row in rows if row["kind"] == "twice") < AT_ONCE_SECONDS + SLACK


@pytest.mark.requirement("S2.21")
def test_the_command_itself_is_saved_by_sigterm_and_says_so_with_its_exit_code(tmp_path):
    words = [*CASES["jax"][1:], "env=jax:CartPole-v1", "total_steps=1e9", f"run_dir={tmp_path / 'run'}"]
    words.remove("total_steps=3840")
    process = subprocess.Popen([sys.executable, "-m", "ludus", "train", *words], stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (journal.exists() and journal.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=SAVED_SECONDS)
    assert process.returncode == 143, said
    assert json.loads((tmp_path / "run" / "run.json").read_text())["exit_reason"] == "SIGTERM"
    assert (tmp_path / "run" / "checkpoints" / "latest").exists()
