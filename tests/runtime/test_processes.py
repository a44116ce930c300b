"""What environments start does not outlive their run, however that ends; nor does its lock."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import SUPPORT
from worker_envs import Starter

import ludus
from ludus.runs.folder import RunFolder, is_training

pytestmark = pytest.mark.slow

SCRIPT = """
import sys, time, ludus
from worker_envs import Starter
env = ludus.make_env(Starter, 2, num_workers=2, folder=sys.argv[1])
env.reset([1, 2])
print("ready", flush=True)
if sys.argv[2] == "killed":
    time.sleep(600)
if sys.argv[2] == "closed":
    env.close()
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def started(folder: Path) -> list[int]:
    """Return whom the environments have started: of each of their groups, apart from it, and forked."""
    return [int(pid) for file in folder.glob("*.pids") for pid in file.read_text().split()]


def assert_all_end(pids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [pid for pid in pids if is_alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
@pytest.mark.parametrize("end", ["killed", "closed", "finished"])
def test_what_workers_have_started_ends_with_the_run(tmp_path, end):
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path), end], stdout=subprocess.PIPE, cwd=SUPPORT, text=True
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "ready\n"
    pids = started(tmp_path)
    assert len(pids) == 6 and (end != "killed" or all(map(is_alive, pids)))
    if end == "killed":
        process.kill()
    process.wait(60)
    assert_all_end(pids)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_what_a_closed_worker_has_started_ends_with_it(tmp_path):
    env = ludus.make_env(Starter, 1, num_workers=1, folder=str(tmp_path))
    env.reset([1])
    own, apart, fork = started(tmp_path)
    env.close()
    assert_all_end([own, fork])
    assert is_alive(apart), "what has left its worker's group ends with the whole run"
    os.kill(apart, signal.SIGKILL)


@pytest.mark.filterwarnings(
    "ignore:os.fork:RuntimeWarning", "ignore:This process.*is multi-threaded:DeprecationWarning"
)
def test_a_forked_process_does_not_keep_the_lock_of_a_run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    reader, writer = os.pipe()
    awake, ready = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.write(ready, b"!")
        os.read(reader, 1)
        os._exit(0)
    os.read(awake, 1)  # what it does first when it runs is done by now
    try:
        assert is_training(folder.path), "the lock stays with the parent"
        folder.append([{"kind": "train"}])
        folder.close()
        assert not is_training(folder.path)
    finally:
        for pipe in (writer, reader, awake, ready):
            os.close(pipe)
        os.waitpid(child, 0)
