"""A run whose terminal or reader goes away: it goes on or is saved, and it can always be resumed."""

import contextlib
import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time

import pytest
from resume_runs import iterations, run, trainer
from signal_runs import CASES

import ludus
from ludus.runs.console import Console
from ludus.runtime.interrupt import Interrupt
from ludus.training.state_arrays import differences
from ludus.training.verify import journal_of, state_of

pytestmark = pytest.mark.slow

WORDS = [word for word in CASES["jax"] if not word.startswith(("verbose", "total_steps"))]


def start(folder, total_steps: str, **options) -> subprocess.Popen:
    words = [*WORDS, f"total_steps={total_steps}", f"run_dir={folder}"]
    return subprocess.Popen([sys.executable, "-m", "ludus", "train", *words], **options)


def identity(folder) -> dict:
    return json.loads((folder / "run.json").read_text())


def test_a_run_goes_on_when_its_reader_leaves(tmp_path):
    process = start(tmp_path / "run", "3840", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    assert b"CartPole" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(300) == 0
    assert identity(tmp_path / "run")["status"] == "finished"
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("nobody reads this output any more") == 1
    assert "evaluation return" in log.splitlines()[-2]


@pytest.mark.filterwarnings(
    "ignore:os.fork:RuntimeWarning", "ignore:This process.*is multi-threaded:DeprecationWarning"
)
@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_closed_terminal_saves_the_run_unless_it_is_to_go_on(tmp_path, is_ignored):
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if is_ignored else signal.SIG_DFL)

    process = start(
        tmp_path / "run",
        "4e4" if is_ignored else "1e9",
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(theirs)
    journal = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 200
    while not (journal.exists() and journal.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.close(ours)
    assert process.wait(300) == (0 if is_ignored else 129)
    assert identity(tmp_path / "run")["exit_reason"] == ("total_steps" if is_ignored else "SIGHUP")
    assert (tmp_path / "run" / "checkpoints" / "latest").exists()


def test_a_second_sighup_does_not_end_the_run_before_it_is_saved():
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may have it ignored
    try:
        with Interrupt() as interrupt:
            for _ in range(3):
                signal.raise_signal(signal.SIGHUP)
            assert interrupt.requested is signal.SIGHUP
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_sighup_stays_ignored_where_it_was():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGHUP)
            assert interrupt.requested is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_console_whose_stream_was_closed_keeps_its_log(tmp_path):
    with (tmp_path / "stream").open("w") as stream:
        console = Console(verbose=True, stream=stream)
        console.log = tmp_path / "log.txt"
        console.say("one")
    console.say("two")
    console.say("three")
    assert (tmp_path / "stream").read_text() == "one\n"
    log = (tmp_path / "log.txt").read_text()
    assert "one" in log and "two" in log and "three" in log


def test_a_run_that_failed_before_its_first_checkpoint_begins_again(tmp_path):
    run("ppo gym", tmp_path / "straight", 5)
    made = trainer("ppo gym", tmp_path / "run")
    step, taken = made.env.step, []

    def failing(action):
        taken.append(action)
        if len(taken) == 40:
            raise OSError("the disk is gone")
        return step(action)

    made.env.step = failing
    with contextlib.closing(made.env), pytest.raises(Exception, match="the disk is gone"):
        made.train(total_steps=iterations("ppo gym", 5))
    assert identity(tmp_path / "run")["status"] == "failed"
    assert identity(tmp_path / "run")["iteration"] > 0
    resumed = ludus.Trainer.resume(tmp_path / "run", verbose=False)
    resumed.final_episodes = 0
    with contextlib.closing(resumed.env):
        resumed.train()
    assert differences(state_of(tmp_path / "straight"), state_of(tmp_path / "run")) == []
    assert journal_of(tmp_path / "straight") == journal_of(tmp_path / "run")
