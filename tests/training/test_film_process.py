"""Films on the way: made by another process, which neither disturbs the run nor outlives it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import films
import numpy as np
import pytest
from safetensors.numpy import load_file

import ludus
from ludus.runs.episode_file import read_episode
from ludus.runs.journal import read_journal
from ludus.training import film_process
from ludus.training.film_process import FilmProcess
from ludus.types import LudusError

pytestmark = pytest.mark.slow


def run(folder, code=None, monkeypatch=None, steps=640, **options):
    """Train a little with films; `code` is what the process runs instead of making a film."""
    said = []
    if code is not None:

        def process(run, files, counts, errors):
            command = [sys.executable, "-c", code, str(files[0])]
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors)

        monkeypatch.setattr(FilmProcess, "_process", staticmethod(process))
    env = ludus.make_env("CartPole-v1", num_envs=4)
    ppo = ludus.PPO(batch_size=64, minibatch_size=64, epochs_per_update=1)
    trainer = ludus.Trainer(
        ppo, env, ludus.Settings(eval_frequency=0, **{"video_frequency": 2, **options}, verbose=False), run_dir=folder
    )
    trainer.final_episodes = 0
    trainer.films._say = said.append
    trainer.train(total_steps=steps)
    return trainer, said


def journal(folder):
    return [{name: value for name, value in row.items() if "second" not in name} for row in read_journal(folder)]


@pytest.mark.requirement("S4.25")
def test_a_run_with_films_is_the_same_run_and_has_films(tmp_path):
    trainer, said = run(tmp_path / "filmed", video_frequency=5)
    run(tmp_path / "plain", video_frequency=0)
    episode = read_episode(tmp_path / "filmed" / "episodes" / "320.safetensors")
    assert (episode.about.steps, episode.about.iteration) == (320, 5) and episode.get("value") is not None
    _, lines = films.side(tmp_path / "filmed" / "videos" / "320.mp4")
    films.assert_drawn_is_recorded(episode, lines)
    assert len(films.watch(tmp_path / "filmed" / "videos" / "320.mp4")) == len(lines)
    assert [row["iteration"] for row in journal(tmp_path / "filmed")] == list(range(1, 11))
    assert journal(tmp_path / "filmed") == journal(tmp_path / "plain")
    final = [load_file(tmp_path / name / "policies" / "final_actor.safetensors") for name in ("filmed", "plain")]
    assert all(np.array_equal(final[0][name], final[1][name]) for name in final[0])
    assert said == ["waiting for the film after 320 steps; Ctrl-C leaves it"] and trainer.films._job is None


@pytest.mark.requirement("S4.25")
def test_what_goes_wrong_is_a_warning(tmp_path, monkeypatch):
    code = "import sys; print('many\\nwords: no encoder', file=sys.stderr); sys.exit(1)"
    trainer, said = run(tmp_path / "run", code, monkeypatch, video_frequency=6)
    assert said[-1] == "the film after 384 steps failed (words: no encoder); training goes on"
    assert trainer.record.steps == 640
    _, said = run(tmp_path / "silent", "raise SystemExit(7)", monkeypatch, video_frequency=6)
    assert said[-1] == "the film after 384 steps failed (exit code 7); training goes on"


def test_a_process_that_cannot_be_started_is_a_warning(tmp_path, monkeypatch):
    def process(*_):
        raise OSError("no more processes")

    monkeypatch.setattr(FilmProcess, "_process", staticmethod(process))
    _, said = run(tmp_path / "run", video_frequency=6)
    assert said == ["the film after 384 steps was not begun (no more processes)"]


@pytest.mark.requirement("S4.25")
def test_there_is_one_process_at_most_and_none_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(film_process, "PATIENCE_SECONDS", 0.3)
    begun = []
    original = subprocess.Popen

    def counting(*words, **options):
        begun.append(original(*words, **options))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", counting)
    _, said = run(tmp_path / "run", "import time; time.sleep(600)", monkeypatch)
    assert len(begun) == 1 and begun[0].returncode == -signal.SIGKILL
    assert said == [
        "waiting for the film after 128 steps; Ctrl-C leaves it",
        "the film after 128 steps was given up after 0 s",
        "3 films were left out: the one before was still being made",
    ]
    assert not Path(begun[0].args[-1]).exists(), "its files are gone"


def test_a_run_that_is_interrupted_does_not_wait(tmp_path, monkeypatch):
    films_of = FilmProcess(2, print)
    with films_of:
        folder = film_process.tempfile.TemporaryDirectory()
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.PIPE)
        films_of._job = film_process._Job(sleeper, folder, 2)
        began = time.monotonic()
    assert sleeper.returncode == -signal.SIGKILL and time.monotonic() - began < 5
    assert not Path(folder.name).exists()


def test_ctrl_c_leaves_the_last_film_and_nothing_else():
    films_of = FilmProcess(2, lambda text: None)
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.PIPE)
    with films_of:
        films_of._job = film_process._Job(sleeper, film_process.tempfile.TemporaryDirectory(), 2)
        films_of.wait = True
        previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    signal.signal(signal.SIGALRM, previous)
    assert sleeper.returncode == -signal.SIGKILL


def test_an_environment_that_only_this_process_knows_is_told_at_once(tmp_path):
    env = ludus.make_env(ludus.envs.native.classic_control.CartPole(), num_envs=4)
    said = []
    settings = ludus.Settings(eval_frequency=0, video_frequency=1, verbose=False)
    trainer = ludus.Trainer(ludus.PPO(batch_size=64, minibatch_size=64), env, settings, run_dir=tmp_path / "run")
    trainer.final_episodes = 0
    trainer.films._say = said.append
    trainer.train(total_steps=256)
    assert said == ["video_frequency=1: no films, since another process cannot make object:CartPole"]


def test_without_a_frequency_nothing_is_filmed(tmp_path, monkeypatch):
    monkeypatch.setattr(FilmProcess, "_begin", lambda *_: pytest.fail("it began"))
    run(tmp_path / "run", video_frequency=0)
    with pytest.raises(LudusError, match="video_frequency=-1: must be an integer of at least 0"):
        run(tmp_path / "other", video_frequency=-1)


def test_a_resumed_run_goes_on_filming_or_begins_to(tmp_path, monkeypatch):
    begun = []

    def begin(self, run, filmed, counts):
        begun.append(counts["steps"])
        self._is_busy = False

    monkeypatch.setattr(FilmProcess, "_begin", begin)
    run(tmp_path / "run", steps=256)
    trainer = ludus.Trainer.resume(tmp_path / "run", total_steps=512, verbose=False)
    trainer.final_episodes = 0
    trainer.train()
    assert begun == [128, 256, 384]  # a film is begun before the chunk that follows, so none at the very end
    trainer = ludus.Trainer.resume(tmp_path / "run", total_steps=768, video_frequency=3, verbose=False)
    trainer.final_episodes = 0
    trainer.train()
    assert begun[3:] == [576]


LONG = """
import sys, ludus
env = ludus.make_env("CartPole-v1", num_envs=4)
ppo = ludus.PPO(batch_size=64, minibatch_size=64, epochs_per_update=1)
settings = ludus.Settings(eval_frequency=0, video_frequency=3, verbose=False)
trainer = ludus.Trainer(ppo, env, settings, run_dir=sys.argv[1])
trainer.train(total_steps=10**9)
"""


def children(pid: int) -> list[int]:
    """The processes that a process has begun, of which we look at those that make films."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"ludus.training.film" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except (OSError, ValueError):
            continue
    return found


def wait_for(condition, seconds=90.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


@pytest.mark.requirement("S4.25")
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks into /proc")
def test_a_run_that_is_killed_leaves_no_process_behind(tmp_path):
    with subprocess.Popen([sys.executable, "-c", LONG, str(tmp_path / "run")]) as process:
        (child,) = wait_for(lambda: children(process.pid))
        nice = os.getpriority(os.PRIO_PROCESS, child)
        folder = Path(Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[5].decode()).parent
        process.send_signal(signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2])
    wait_for(lambda: not folder.exists())
    assert nice >= os.getpriority(os.PRIO_PROCESS, 0)
