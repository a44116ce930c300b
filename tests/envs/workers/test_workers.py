"""Environment workers: the same results as in one process, and whatever a worker does, no hang, no orphan, no lie."""

import contextlib
import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from oracles import flat
from worker_envs import FAULTS, LENGTH, AsksForJax, FailsToStart, Ledger, Masking, Rich, Slow
from worker_runs import PPO, Runner, assert_true_pairs, descendants, is_running

import ludus
from ludus.cli.main import main
from ludus.envs.workers.placement import workers_that_pay
from ludus.envs.workers.pool import WorkerPool
from ludus.envs.workers.supervisor import RESTARTS, WorkerEnv
from ludus.runtime import processes

pytestmark = pytest.mark.slow


@pytest.fixture
def made():
    """Close every environment that a test has made, and see that nothing of it is left."""
    processes.guard_of(os.getpid())  # stays as long as this process
    envs, before, files = [], descendants(), open_files()

    def make(env, *arguments, **options):
        envs.append(ludus.make_env(env, *arguments, **options))
        return envs[-1]

    yield make
    while envs:
        envs.pop().close()
    assert descendants() <= before, "no process is left"
    gc.collect()
    assert open_files() <= files, "no pipe and no memory is left"


def open_files() -> int:
    links = [path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum(link.startswith(("memfd:ludus", "pipe:")) for link in links)


# --- the same results ---


@pytest.mark.parametrize("env", [Ledger, Masking, Rich, "gym:CartPole-v1"], ids=str)
def test_any_number_of_workers_gives_the_same_bits(env, made):
    """Five environments, so that slices are uneven; the second rollout carries over."""
    runs = [Runner(made(env, 5)), *(Runner(made(env, 5, num_workers=count)) for count in (1, 2, 5))]
    for _ in range(2):
        (steps, stats), *others = [run.rollout() for run in runs]
        assert (steps.terminated | steps.truncated).any()
        for other_steps, other_stats in others:
            assert other_steps.valid is None, "nothing broke: the update is the same program"
            jax.tree.map(np.testing.assert_array_equal, steps, other_steps)
            assert other_stats.info == stats.info
            jax.tree.map(np.testing.assert_array_equal, stats._replace(seconds=()), other_stats._replace(seconds=()))


def test_evaluation_is_the_same_in_workers(made):
    trainers = [
        ludus.Trainer(
            ludus.PPO(**PPO),
            made("gym:CartPole-v1", 4, num_workers=count),
            ludus.Settings(verbose=False, eval_frequency=0),
        )
        for count in (0, 2)
    ]
    alone, spread = (trainer.evaluate(6) for trainer in trainers)
    np.testing.assert_array_equal(alone.returns, spread.returns)
    np.testing.assert_array_equal(alone.lengths, spread.lengths)


@pytest.mark.parametrize("network", [ludus.MLP((16,)), ludus.GRU(8, (16,))], ids=["mlp", "gru"])
def test_training_is_the_same_in_workers(network, made):
    reached = []
    for count in (0, 2):
        env = made(Ledger, 4, num_workers=count)
        ppo = ludus.PPO(**PPO | {"network": network}, normalize_observations=True)
        trainer = ludus.Trainer(ppo, env, ludus.Settings(verbose=False, eval_frequency=0))
        trainer.final_episodes = 0
        trainer.train(total_steps=640)
        reached.append(flat(trainer.policy.state.parameters))
    np.testing.assert_array_equal(*reached)


def test_workers_do_not_import_jax(made):
    _, stats = Runner(made(AsksForJax, 2, num_workers=1)).rollout()
    assert stats.info["info/jax/mean"] == 0
    _, stats = Runner(made(AsksForJax, 2)).rollout()
    assert stats.info["info/jax/mean"] == 1


# --- faults ---


@pytest.mark.parametrize(
    ("kind", "wait", "lost_rows"),
    [*((kind, 0, 1) for kind in FAULTS[:-1]), ("slow reset", 0, LENGTH - 3), ("kill", 10, LENGTH), ("raise", 4, 1)],
)
def test_a_worker_at_fault_is_replaced_and_its_episodes_are_dropped(kind, wait, lost_rows, made, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    env = made(Ledger, 4, num_workers=2, worker_timeout=0.4, folder=str(tmp_path))
    run = Runner(env)
    run.rollout(10)  # the third step of the second episode: no rollout begins with an episode
    (tmp_path / kind).write_text(str(wait))
    began = time.monotonic()
    steps, stats = run.rollout()
    assert time.monotonic() - began < 60
    assert not (tmp_path / kind).exists(), "the fault was committed"
    kept = assert_true_pairs(steps)
    lost = ~steps.valid
    assert lost.any(axis=0).sum() == 2, "the two environments of one worker, and no others"
    assert lost.sum(axis=0).max() == lost_rows, "all rows of the lost episode, and no others"
    assert stats.steps == kept == steps.valid.sum()
    ended = (steps.terminated | steps.truncated) & steps.valid
    assert stats.episodes == ended.sum()
    assert stats.return_min == stats.return_max == LENGTH * (LENGTH - 1) / 2, "no episode has lost or won a step"
    assert stats.length_sum == LENGTH * stats.episodes
    assert stats.info["info/step/last"] == LENGTH
    (warning,) = caplog.messages
    for word in ("object:Ledger", "environment ", "worker ", "seed ", "last action ", "restarted"):
        assert word in warning
    assert_true_pairs(run.rollout()[0])


REASONS = {
    "raise": "raised ValueError: out of fuel\nTraceback",
    "exit": "raised SystemExit: 3",
    "kill": "died of SIGKILL",
    "segfault": "died of SIGSEGV\nFatal Python error: Segmentation fault",
    "stop": "gave no answer for 0.4 s",
    "loop": "in commit",
    "shape": "observation",
    "type": "answered wrongly: its reward is 'many', which holds no real numbers",
    "slow reset": "resetting; seed ",
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_worker_at_fault_stops_the_run_if_so_asked(kind, made, tmp_path):
    env = made(Ledger, 2, num_workers=2, worker_timeout=0.4, on_worker_fault="stop", folder=str(tmp_path))
    run = Runner(env)
    (tmp_path / kind).touch()
    began = time.monotonic()
    with pytest.raises(ludus.LudusError) as caught:
        run.rollout()
    assert time.monotonic() - began < 60
    first = str(caught.value)
    assert "\n" not in first
    assert REASONS[kind] in "\n".join([first, *getattr(caught.value, "__notes__", [])])
    assert first.startswith("object:Ledger: environment ") and "seed " in first and "last action " in first
    with pytest.raises(ludus.LudusError, match="closed"):
        run.rollout()


@pytest.mark.parametrize("kind", ["raise", "kill"])
def test_a_worker_that_never_ends_an_episode_is_given_up(kind, made, tmp_path, caplog):
    run = Runner(made(Ledger, 2, num_workers=1, folder=str(tmp_path)))
    (tmp_path / f"always {kind}").touch()
    with pytest.raises(ludus.LudusError, match=f"given up after {RESTARTS} restarts without the end of an episode"):
        run.rollout()
    assert len(caplog.messages) == RESTARTS


def test_faults_may_go_on_as_long_as_episodes_end(made, tmp_path, caplog):
    run = Runner(made(Ledger, 2, num_workers=1, folder=str(tmp_path)))
    for _ in range(RESTARTS + 2):
        (tmp_path / "kill").touch()
        steps, stats = run.rollout(16)
        assert stats.episodes == 2 * 2
        assert stats.steps == assert_true_pairs(steps) == 2 * 15
    assert len(caplog.messages) == RESTARTS + 2


def test_seeds_after_a_fault_are_fresh_and_always_the_same(made, tmp_path):
    seen = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        run = Runner(made(Ledger, 2, num_workers=1, folder=str(tmp_path / name)))
        before = np.array(run.carry.env.obs[:, 0])
        (tmp_path / name / "kill").touch()
        steps, _ = run.rollout()
        assert not set(steps.obs[-1, :, 0]) & set(before)
        seen.append(steps.obs[-1])
    np.testing.assert_array_equal(*seen)


@pytest.mark.parametrize("kind", ["kill", "raise"])
def test_a_whole_episode_that_broke_makes_room_for_the_next(kind, made, tmp_path):
    run = Runner(made(Ledger, 4, num_workers=2, folder=str(tmp_path)), whole_episodes=True)
    (tmp_path / kind).touch()
    steps, stats = run.rollout()
    assert stats.episodes == 4 and stats.steps == assert_true_pairs(steps) == 4 * LENGTH
    assert stats.return_sum == 4 * LENGTH * (LENGTH - 1) / 2
    assert sorted(steps.valid.argmax(axis=0)) == [0, 0, 1, 1]


def test_the_memory_of_a_policy_is_cleared_where_an_episode_broke(made, tmp_path):
    """With the episode's first observation, memory after a break equals that of a policy that starts there."""
    ppo = ludus.PPO(**PPO, network=ludus.GRU(memory_size=4, hidden_sizes=(8,)))
    run = Runner(made(Ledger, 2, num_workers=1, folder=str(tmp_path)), ppo)
    run.rollout(3)
    (tmp_path / "kill").touch()
    run.rollout(1)
    start = run.algorithm.initial_memory(run.policy, 2)
    jax.tree.map(np.testing.assert_array_equal, run.carry.memory, start)
    assert (run.carry.env.episode_length == 0).all() and (run.carry.env.obs[:, 2] == 0).all()


def test_a_worker_that_dies_while_nobody_asks_is_noticed_at_the_next_step(made):
    env = made(Ledger, 2, num_workers=2)
    run = Runner(env)
    os.kill(env._pool._workers[1].process.pid, signal.SIGKILL)
    steps, _ = run.rollout()
    np.testing.assert_array_equal(steps.valid[0], [True, False])
    assert_true_pairs(steps)


def test_after_an_interrupted_step_nothing_is_stitched(made, monkeypatch):
    env = made(Slow, 2, num_workers=2)
    run = Runner(env)
    run.rollout(2)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(env._pool, "_answered", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        run.rollout(2)
    steps, _ = run.rollout(8)
    assert not steps.valid[0].any(), "what came in between was never seen"


def test_a_fault_in_a_reset_is_answered_with_the_same_seeds(made, tmp_path):
    env = made(Ledger, 2, num_workers=1, folder=str(tmp_path))
    first = np.array(env.reset([5, 6]))
    os.kill(env._pool._workers[0].process.pid, signal.SIGKILL)
    np.testing.assert_array_equal(env.reset([5, 6]), first)


# --- starting ---


def test_a_first_reset_may_take_longer_than_the_timeout(made):
    env = made(Ledger, 2, num_workers=2, worker_timeout=0.2, slow_start=0.5)
    assert env.reset([0, 1]).shape == (2, 3)


@pytest.mark.parametrize(
    ("kind", "message"), [("segfault", "being made) died of SIGSEGV"), ("raise", "raised ValueError: out of fuel")]
)
def test_an_environment_that_cannot_be_made_is_named(kind, message, made):
    with pytest.raises(ludus.LudusError) as caught:
        made(Ledger, 2, num_workers=2, broken_start=kind)
    assert message in str(caught.value)


def local():
    class Local(Ledger):
        pass

    return Local


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        (Ledger, {"num_workers": 3}, "num_workers=3: more workers than environments (num_envs=2)"),
        (Ledger, {"num_workers": -1}, "num_workers=-1: must be auto or an integer of at least 0"),
        (Ledger, {"num_workers": True}, "num_workers=True: must be auto or"),
        (Ledger, {"num_workers": "all"}, "num_workers=all: must be auto or"),
        (Ledger, {"num_workers": 1, "worker_timeout": 0}, "worker_timeout=0: must be a number of seconds above 0"),
        (Ledger, {"num_workers": 1, "on_worker_fault": "cry"}, "on_worker_fault=cry: must be one of restart, stop"),
        (lambda: Ledger(), {"num_workers": 1}, "define its class or function at the top level of a module"),
        (local(), {"num_workers": 1}, "define its class or function at the top level of a module"),
        ("jax:CartPole-v1", {"num_workers": 1}, "num_workers=1: jax:CartPole-v1 does not step in worker processes"),
        ("gym:CartPole-v1", {"num_workers": 1, "gravitation": 3}, "does not take them"),
        ("gym:CartPol-v1", {"num_workers": 1}, "env=CartPol-v1: no such environment; did you mean"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(env, options, message):
    with pytest.raises(ludus.LudusError) as caught:
        ludus.make_env(env, 2, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_instance_goes_to_workers_too(made):
    env = made(Ledger(length=3), 2, num_workers=2)
    run = Runner(env)
    assert run.rollout(6)[1].episodes == 4


def test_an_environment_registered_here_is_known_there(made):
    import gymnasium

    gymnasium.register("LedgerOfTests-v0", entry_point="worker_envs:Ledger", max_episode_steps=4)
    try:
        steps, _ = Runner(made("gym:LedgerOfTests-v0", 2, num_workers=2)).rollout(8)
    finally:
        del gymnasium.registry["LedgerOfTests-v0"]
    assert steps.truncated.sum() == 4


# --- the choice ---


@pytest.mark.parametrize(
    ("step_seconds", "num_envs", "cores", "expected"),
    [(10e-6, 16, 2, 0), (500e-6, 16, 2, 2), (500e-6, 16, 1, 0), (500e-6, 1, 8, 0), (5e-3, 16, 8, 8), (5e-3, 4, 8, 4)],
)
def test_workers_are_chosen_where_they_pay(step_seconds, num_envs, cores, expected):
    assert workers_that_pay(step_seconds, num_envs, cores) == expected


def test_auto_measures_and_says_what_it_chose(made, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert "cannot be sent" in made(lambda: Slow(), 4, num_workers="auto").placement
    assert made("CartPole-v1", 4, num_workers="auto").id == "jax:CartPole-v1"
    slow = made(Slow, 4, num_workers="auto")
    assert isinstance(slow, WorkerEnv) and slow.num_workers == 2
    assert slow.placement.startswith("2 workers (") and slow.placement.endswith(" µs a step)")
    monkeypatch.setattr("ludus.envs.workers.placement.step_seconds", lambda make: 5e-6)
    assert made("gym:CartPole-v1", 2, num_workers="auto").placement == "in this process (5 µs a step)"


def test_a_run_records_the_number_and_evaluation_obeys(tmp_path, monkeypatch, capsys):
    words = ["train", "env=gym:CartPole-v1", "num_envs=4", "num_workers=2", "total_steps=1", "eval_frequency=0"]
    run = tmp_path / "run"
    assert main([*words, f"run_dir={run}", "worker_timeout=30"]) == 0
    assert "4 environments · 2 workers · seed 0" in capsys.readouterr().err
    config = (run / "config.yaml").read_text()
    assert "num_workers: 2\n" in config and "worker_timeout: 30.0\n" in config
    started = []
    start = WorkerPool.start
    monkeypatch.setattr(WorkerPool, "start", lambda *a: started.append(a[1]) or start(*a))
    assert main(["evaluate", str(run), "--episodes", "2"]) == 0
    assert started == [0, 1, 0, 1], "two for the batch, two for the evaluation"
    assert main([*words, "num_workers=5"]) == 2
    assert "num_workers=5: more workers than environments" in capsys.readouterr().err


# --- evaluation ---


def test_a_broken_evaluation_episode_is_played_again(made, tmp_path):
    env = made(Ledger, 2, num_workers=2, folder=str(tmp_path))
    trainer = ludus.Trainer(ludus.PPO(**PPO), env, ludus.Settings(verbose=False, eval_frequency=0))
    (tmp_path / "kill").touch()
    evaluation = trainer.evaluate(5)
    assert not (tmp_path / "kill").exists()
    assert evaluation.lengths.tolist() == [LENGTH] * 5
    assert evaluation.returns.tolist() == [LENGTH * (LENGTH - 1) / 2] * 5


def test_an_evaluation_that_always_breaks_is_an_error(made, tmp_path):
    env = made(Ledger, 2, num_workers=2, folder=str(tmp_path))
    trainer = ludus.Trainer(ludus.PPO(**PPO), env, ludus.Settings(verbose=False, eval_frequency=0))
    (tmp_path / "always raise").touch()
    with pytest.raises(ludus.LudusError, match=r"never counted|given up after"):
        trainer.evaluate(5)


def test_a_run_goes_on_over_a_fault_and_counts_what_is_true(made, tmp_path):
    orders = tmp_path / "orders"
    orders.mkdir()
    env = made(Ledger, 4, num_workers=2, folder=str(orders))
    trainer = ludus.Trainer(
        ludus.PPO(**PPO), env, ludus.Settings(verbose=False, eval_frequency=0), run_dir=tmp_path / "run"
    )
    trainer.train(total_steps=64)
    (orders / "kill").touch()
    result = trainer.train(total_steps=192)
    from ludus.runs.journal import read_journal

    rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "train"]
    assert result.steps == rows[-1]["steps"] >= 192
    made_steps = np.diff([0, *(row["steps"] for row in rows)])
    assert made_steps[0] == 64 and 0 < made_steps[1] < 64 and made_steps[2] == 64
    for row in rows:
        assert row["episode_return_mean"] == LENGTH * (LENGTH - 1) / 2 and row["info/step/last"] == LENGTH


@pytest.mark.parametrize("on_fault", ["restart", "stop"])
def test_a_fault_while_workers_of_a_known_kind_start_is_one_like_any_other(made, tmp_path, on_fault, caplog):
    env = made(FailsToStart, 4, num_workers=2, folder=str(tmp_path), on_worker_fault=on_fault)
    (tmp_path / "start").touch()
    if on_fault == "stop":
        with pytest.raises(ludus.LudusError, match=r"being made.*exited with code 3"):
            env.remake(4)
        return
    with contextlib.closing(env.remake(4)) as other, contextlib.closing(Ledger()) as alone:
        assert other.reset([5, 6, 7, 8]).tolist()[0] == alone.reset(seed=5)[0].tolist()
    assert "is restarted" in caplog.text and "dropped" not in caplog.text


def test_the_first_workers_of_a_kind_are_not_tried_again(made, tmp_path):
    (tmp_path / "start").touch()
    with pytest.raises(ludus.LudusError, match=r"being made\) exited with code 3$"):
        made(FailsToStart, 4, num_workers=2, folder=str(tmp_path))


# --- nothing is left ---


PARENT = """
import os, signal, sys, pathlib, threading, ludus, numpy as np
from worker_envs import Ledger
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started without it

def start():
    global env
    env = ludus.make_env(Ledger, 4, num_workers=4, folder=sys.argv[1], worker_timeout=1000)
    env.reset([0, 1, 2, 3])
thread = threading.Thread(target=start)  # workers outlive the thread that asked for them
thread.start(); thread.join()
env.step(np.zeros(4, np.int32))
print(*(worker.process.pid for worker in env._pool._workers.values()), flush=True)
for kind in sys.argv[2:]:
    pathlib.Path(sys.argv[1], kind).touch()
env.step(np.zeros(4, np.int32))
"""


@contextlib.contextmanager
def parent(folder: Path, *kinds: str) -> Iterator[tuple[subprocess.Popen, list[int]]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PARENT, str(folder), *kinds]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    try:
        yield process, [int(pid) for pid in process.stdout.readline().split()]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def assert_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while (left := [pid for pid in pids if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


def test_workers_die_with_a_parent_that_is_killed_whatever_they_are_doing(tmp_path):
    """One loops without end, one is stopped, one is stuck in C, one waits for its next command."""
    memory = set(os.listdir("/dev/shm"))
    with parent(tmp_path, "loop", "stop", "hold") as (_, pids):
        assert len(pids) == 4
        deadline = time.monotonic() + 10
        while list(tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not list(tmp_path.iterdir()), "all orders were carried out"
    assert_gone(pids)
    assert set(os.listdir("/dev/shm")) <= memory


@pytest.mark.parametrize("kinds", [(), ("loop",)], ids=["at the end", "on Ctrl-C"])
def test_workers_end_with_a_parent_that_forgets_them(kinds, tmp_path):
    with parent(tmp_path, *kinds) as (process, pids):
        if kinds:
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
        code = process.wait(20)
        assert_gone(pids)
    assert code != 0 if kinds else code == 0


SCRIPT = """
import ludus
from worker_envs import Ledger

class Mine(Ledger):
    pass

{guard}env = ludus.make_env(Mine, 2, num_workers=2)
{guard}print(env.reset([0, 1]).shape)
{guard}env.close()
"""


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "not guarded"])
def test_an_environment_in_the_script_itself(guarded, tmp_path):
    guard = 'if __name__ == "__main__": ' if guarded else ""
    (tmp_path / "mine.py").write_text(textwrap.dedent(SCRIPT.format(guard=guard)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "mine.py")], capture_output=True, text=True, env=environment, check=False
    )
    if guarded:
        assert done.stdout.strip() == "(2, 3)", done.stderr
    else:
        assert "put what it does under `if __name__ == '__main__':`" in done.stderr.strip().splitlines()[-1]
