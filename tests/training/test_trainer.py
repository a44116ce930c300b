"""The trainer: exact counts, any chunking, determinism, faults, interrupts, what a run folder holds."""

import contextlib
import errno
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import textwrap
import threading

import gymnasium
import jax
import numpy as np
import pytest
from oracles import flat

import ludus
from ludus.envs.native.probes import PROBES
from ludus.runs.folder import read_config
from ludus.runs.journal import read_journal
from ludus.runs.metrics import is_timing
from ludus.runtime import files
from ludus.training import trainer as trainer_module

pytestmark = pytest.mark.slow

TINY = {"batch_size": 64, "minibatch_size": 32, "epochs_per_update": 2, "learning_rate": 1e-3}
ENVS = ["jax:CartPole-v1", "gym:CartPole-v1"]


def make_trainer(env="jax:CartPole-v1", num_envs=4, ppo=None, run_dir=None, **options) -> ludus.Trainer:
    options = {"eval_frequency": 0, "verbose": False} | options
    env = ludus.make_env(env, num_envs=num_envs) if isinstance(env, str) else env
    return ludus.Trainer(ppo or ludus.PPO(**TINY), env, ludus.Settings(**options), run_dir=run_dir)


def without_clock(rows: list[dict]) -> list[dict]:
    return [{k: v for k, v in row.items() if not is_timing(k)} for row in rows]


def leaves(trainer: ludus.Trainer) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(trainer.state)]


@pytest.mark.requirement("S2.12")
@pytest.mark.requirement("S3.13")
@pytest.mark.parametrize("env", ENVS)
def test_counts_are_exact_and_the_run_ends_with_the_iteration_that_reaches_the_budget(env, tmp_path):
    trainer = make_trainer(env, run_dir=tmp_path / "run")
    result = trainer.train(total_steps=1000)
    assert (result.steps, result.iterations, result.updates) == (1024, 16, 16 * 2 * 2)
    assert result.stopped_by == "total_steps"
    rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "train"]
    assert [row["steps"] for row in rows] == list(range(64, 1025, 64))
    assert rows[-1]["episodes"] == result.episodes > 0
    assert [row["seq"] for row in read_journal(tmp_path / "run")] == list(range(17))


@pytest.mark.requirement("S1.15")
def test_max_seconds_ends_a_run():
    assert make_trainer().train(max_seconds=0.2).stopped_by == "max_seconds"


@pytest.mark.requirement("S1.15")
@pytest.mark.parametrize("env", ENVS)
def test_max_episodes_are_played_and_no_more(env, tmp_path, monkeypatch):
    trainer = make_trainer(env, run_dir=tmp_path / "run", record_episodes=True)
    trainer.final_episodes = 0
    for limit in (1, 30):
        result = trainer.train(max_episodes=limit)
        assert (result.episodes, result.stopped_by) == (limit, "max_episodes")
        rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "train"]
        lengths = [length for row in rows for length in row["episode_lengths"]]
        running = np.asarray(trainer.state.carry.env.episode_length).sum()
        assert len(lengths) == rows[-1]["episodes"] == limit
        assert result.steps == rows[-1]["steps"] == sum(lengths) + running, "nothing is lost between two calls"
    monkeypatch.setattr(trainer_module, "CHUNK_SECONDS", 0.0)  # every chunk is one iteration
    again = make_trainer(env, run_dir=tmp_path / "again", record_episodes=True)
    again.final_episodes = 0
    again.train(max_episodes=1)
    ludus.Trainer.resume(tmp_path / "again", max_episodes=30, verbose=False).train()
    assert without_clock(read_journal(tmp_path / "again"))[: len(rows)] == without_clock(rows)


def test_an_episode_that_a_rollout_cuts_is_not_reported(tmp_path, capsys):
    env = ludus.make_env("jax:Pendulum-v1", 4, max_episode_steps=50)
    make_trainer(env, run_dir=tmp_path / "run", collect="episodes", verbose=True).train(total_steps=128)
    rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "train"]
    assert [(row["episodes"], row["episodes_cut"], row["steps"]) for row in rows] == [(0, 4, 64), (0, 4, 128)]
    assert all("episode_return_mean" not in row for row in rows), "16 of 50 steps are no return"
    assert capsys.readouterr().err.count("4 episodes were cut where the rollout had no more room") == 1


@pytest.mark.requirement("S3.12")
@pytest.mark.parametrize("env", ["jax:CartPole-v1", "gym:CartPole-v1"])
def test_rollouts_may_hold_whole_trajectories_until_there_are_enough_steps(env, tmp_path):
    env = ludus.make_env(env, 2, max_episode_steps=30)
    ppo = ludus.PPO(batch_size=100, minibatch_size=32, epochs_per_update=2)
    options = {"collect": "trajectories", "checkpoint": ludus.CheckpointOptions(every_iterations=1)}
    trainer = make_trainer(env, ppo=ppo, run_dir=tmp_path / "run", **options)
    trainer.final_episodes = 0
    result = trainer.train(total_steps=300)
    rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "train"]
    steps, episodes = (np.diff([0, *(row[name] for row in rows)]) for name in ("steps", "episodes"))
    assert (steps >= 100).all() and (steps <= 2 * (50 + 29)).all()
    for row, made, ended in zip(rows, steps, episodes, strict=True):
        assert made == round(row["episode_length_mean"] * ended), "there is nothing but whole episodes"
        assert row["episodes_cut"] == 0
    assert np.diff([0, *(row["updates"] for row in rows)]).tolist() == [2 * -(-made // 32) for made in steps]
    assert result.steps == rows[-1]["steps"]
    resumed = ludus.Trainer.resume(tmp_path / "run", rows[0]["steps"], verbose=False)
    resumed.final_episodes = 0
    resumed.train()
    assert without_clock(read_journal(tmp_path / "run")) == without_clock(rows), "bit by bit the same"


def test_whole_trajectories_need_a_longest_episode_and_an_algorithm_that_learns_from_them():
    endless = ludus.make_env(gymnasium.make("Pendulum-v1").unwrapped)
    with pytest.raises(ludus.LudusError, match=r"collect=trajectories: object:PendulumEnv names no longest episode"):
        make_trainer(endless, collect="trajectories")
    with pytest.raises(ludus.LudusError, match="collect=trajectories: this algorithm learns from a replay"):
        make_trainer("jax:Pendulum-v1", ppo=ludus.SAC(), collect="trajectories")


@pytest.mark.requirement("S0.5")
@pytest.mark.requirement("S1.29")
def test_whole_episodes_count_one_for_each_environment():
    env = ludus.make_env("jax:CartPole-v1", 4, max_episode_steps=16)
    result = make_trainer(env, collect="episodes").train(max_episodes=12)
    assert result.episodes == 12
    assert result.iterations == 3
    assert result.steps <= 12 * 16


@pytest.mark.requirement("S4.1")
def test_training_goes_on_from_call_to_call():
    constant = ludus.PPO(**TINY, anneal_learning_rate=False)
    once, twice = make_trainer(ppo=constant), make_trainer(ppo=constant)
    once.train(total_steps=512)
    twice.train(total_steps=256)
    assert twice.train(total_steps=512).steps == 512
    jax.tree.map(np.testing.assert_array_equal, leaves(once), leaves(twice))


@pytest.mark.parametrize("env", ENVS)
def test_any_chunking_gives_the_same_bits(env, tmp_path, monkeypatch):
    long, short = make_trainer(env, run_dir=tmp_path / "long"), make_trainer(env, run_dir=tmp_path / "short")
    long.train(total_steps=1024)
    monkeypatch.setattr(trainer_module, "CHUNK_SECONDS", 0.0)  # every chunk is one iteration
    short.train(total_steps=1024)
    jax.tree.map(np.testing.assert_array_equal, leaves(long), leaves(short))
    assert without_clock(read_journal(tmp_path / "long")) == without_clock(read_journal(tmp_path / "short"))


@pytest.mark.requirement("S1.18")
@pytest.mark.requirement("S2.17")
@pytest.mark.parametrize("env", ENVS)
def test_evaluation_never_touches_training(env):
    ppo = ludus.PPO(**TINY, normalize_observations=True)
    never, often = make_trainer(env, ppo=ppo), make_trainer(env, ppo=ppo, eval_frequency=3, eval_episodes=2)
    never.train(total_steps=640)
    often.train(total_steps=640)
    before = leaves(often)
    assert str(often.evaluate(5)) == str(often.evaluate(5)), "the same question has the same answer"
    jax.tree.map(np.testing.assert_array_equal, before, leaves(often))
    jax.tree.map(np.testing.assert_array_equal, leaves(never), leaves(often))


@pytest.mark.requirement("S1.10")
def test_changing_a_traced_hyperparameter_compiles_nothing_and_a_run_never_recompiles():
    compiled = []
    make_trainer().train(total_steps=512)
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if "backend_compile" in event else None
    )
    trainer = make_trainer(ppo=ludus.PPO(**{**TINY, "learning_rate": 1e-4}, gamma=0.9, clip_epsilon=0.1))
    trainer.train(total_steps=512)
    trainer.train(total_steps=4096)
    assert compiled == []
    make_trainer(ppo=ludus.PPO(**{**TINY, "minibatch_size": 16})).train(total_steps=64)
    assert compiled, "the counter counts: another minibatch size is another program"


SCRIPT = """
import hashlib, sys, numpy as np, jax, ludus
env = ludus.make_env(sys.argv[1], num_envs=4)
ppo = ludus.PPO(batch_size=64, minibatch_size=32, epochs_per_update=2, normalize_observations=True)
settings = ludus.Settings(seed=3, eval_frequency=2, eval_episodes=2, verbose=False)
trainer = ludus.Trainer(ppo, env, settings, run_dir=sys.argv[2])
trainer.train(total_steps=512)
print(hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(trainer.state))).hexdigest())
"""


@pytest.mark.requirement("S1.36")
@pytest.mark.parametrize("env", [*ENVS, "jax:Pendulum-v1"])
def test_same_seed_in_two_fresh_processes_gives_the_same_bits_and_journal(env, tmp_path):
    hashes = []
    for name in ("a", "b"):
        # The first process compiles, the second may load from the cache: that must make no difference either.
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        command = [sys.executable, "-c", SCRIPT, env, str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        hashes.append(done.stdout)
    assert hashes[0] == hashes[1]
    rows = [without_clock(read_journal(tmp_path / name)) for name in ("a", "b")]
    assert rows[0] == rows[1]


def test_another_seed_gives_another_run():
    one, other = make_trainer(seed=0), make_trainer(seed=1)
    one.train(total_steps=64)
    other.train(total_steps=64)
    assert not np.array_equal(flat(one.state.learner.parameters), flat(other.state.learner.parameters))


class Broken(gymnasium.Env):
    """Answers well for 40 steps, then not."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, how: str = "none"):
        self.how, self.t = how, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        obs, reward = self.np_random.uniform(-1, 1, 2).astype(np.float32), 1.0
        if self.t > 40 and self.how == "nan observation":
            obs[0] = np.nan
        if self.t > 40 and self.how == "infinite reward":
            reward = np.inf
        if self.t > 40 and self.how == "wrong shape":
            obs = np.zeros(3, np.float32)
        return obs, reward, bool(self.np_random.random() < 0.1), False, {}


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("nan observation", "observation is not finite (NaN or Inf) in iteration 3, after 128 steps"),
        ("infinite reward", "reward is not finite (NaN or Inf) in iteration 3, after 128 steps"),
        ("wrong shape", "its observation has the shape (3,), but its observation space says (2,)"),
    ],
)
def test_a_broken_environment_stops_the_run_by_name_and_keeps_what_was_learnt(how, named, tmp_path):
    good = make_trainer(ludus.make_env(lambda: Broken("none"), num_envs=4))
    good.train(total_steps=128)
    trainer = make_trainer(ludus.make_env(lambda: Broken(how), num_envs=4), run_dir=tmp_path / "run")
    with pytest.raises(ludus.LudusError) as caught:
        trainer.train(total_steps=10_000)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)
    saved = ludus.load_policy(tmp_path / "run").state.parameters
    np.testing.assert_array_equal(flat(saved), flat(trainer.state.learner.parameters))
    assert np.isfinite(flat(saved)).all()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"
    assert [row["steps"] for row in read_journal(tmp_path / "run")] == [64, 128]


class Poisoned(PROBES["action-reward"]):
    """A JAX environment whose reward turns NaN once in a while."""

    def step(self, state, action, key):
        state, step = super().step(state, action, key)
        return state, step._replace(reward=jax.numpy.where(jax.random.uniform(key) < 0.002, np.nan, step.reward))


def test_a_nan_inside_the_compiled_loop_freezes_the_state_at_that_update(tmp_path):
    trainer = make_trainer(ludus.make_env(Poisoned(), num_envs=4), run_dir=tmp_path / "run")
    with pytest.raises(ludus.LudusError, match="reward is not finite"):
        trainer.train(total_steps=100_000)
    good = trainer.record.iterations
    assert 0 < good < 1000
    assert all(np.isfinite(leaf).all() for leaf in leaves(trainer) if leaf.dtype == np.float32)
    assert int(trainer.state.iteration) == good
    again = make_trainer(ludus.make_env(Poisoned(), num_envs=4), ppo=ludus.PPO(**TINY))
    with pytest.raises(ludus.LudusError):
        again.train(total_steps=100_000)
    jax.tree.map(np.testing.assert_array_equal, leaves(trainer), leaves(again))


INTERRUPTED = """
import ludus, sys
env = ludus.make_env("CartPole-v1", num_envs=16)
trainer = ludus.Trainer(ludus.PPO(), env, ludus.Settings(eval_frequency=0), run_dir=sys.argv[1])
print(trainer.train(total_steps=10**12).stopped_by)
"""


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "interrupt"), (signal.SIGTERM, "SIGTERM"), (signal.SIGUSR1, "SIGUSR1")]
)
def test_a_signal_leaves_cleanly_with_what_was_learnt(number, name, tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "run" / "metrics.jsonl"
    while process.poll() is None and not (journal.exists() and journal.stat().st_size):
        pass
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert out.strip() == name, err
    assert "Traceback" not in err
    identity = json.loads((tmp_path / "run" / "run.json").read_text())
    assert identity["status"] == "interrupted"
    assert identity["steps"] == read_journal(tmp_path / "run")[-1]["steps"] > 0
    assert ludus.load_policy(tmp_path / "run")(np.zeros(4)) in (0, 1)


@pytest.mark.requirement("S1.21")
@pytest.mark.requirement("S2.3")
@pytest.mark.requirement("S4.18")
def test_a_run_folder_holds_configuration_identity_journal_and_policy(tmp_path):
    options = {"eval_frequency": 2, "eval_episodes": 3, "health_frequency": 0}
    make_trainer(run_dir=tmp_path / "run", **options).train(total_steps=256)
    config = read_config(tmp_path / "run")
    assert config["env"] == "jax:CartPole-v1", "the backend that was chosen is written out"
    assert config["algorithm"]["learning_rate"] == 1e-3
    assert config["total_steps"] == 256
    identity = json.loads((tmp_path / "run" / "run.json").read_text())
    assert {"id", "seed", "versions", "devices", "compiler_options", "status", "exit_reason"} <= identity.keys()
    assert (tmp_path / "run" / "policies" / "final_actor.safetensors").is_file()
    rows = read_journal(tmp_path / "run")
    assert [row["kind"] for row in rows] == ["train", "train", "evaluation", "train", "train", "evaluation"]
    assert all(not isinstance(value, dict | list) for row in rows for value in row.values()), "rows are flat"
    assert rows[-1]["eval_episodes"] == 100
    assert (tmp_path / "run").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["algorithm", "env", "settings"])
def test_the_parts_of_a_trainer_cannot_be_exchanged(name):
    trainer = make_trainer()
    before = getattr(trainer, name)
    with pytest.raises(ludus.LudusError, match=rf"trainer.{name}: cannot be exchanged; make a new Trainer"):
        setattr(trainer, name, ludus.PPO())
    assert getattr(trainer, name) is before


def test_every_journal_figure_is_documented(tmp_path):
    from ludus.algorithms.ppo import METRICS
    from ludus.runs.metrics import EVALUATION, ITERATION, names_of

    make_trainer(run_dir=tmp_path / "run", health_frequency=0, recent_episodes_window=1).train(total_steps=256)
    train, evaluation = read_journal(tmp_path / "run")[-2:]
    counts = {"iteration", "steps", "episodes", "updates", "elapsed_seconds", "seconds/evaluation"}
    # Compiled or not, an iteration has a time; a program that was compiled meanwhile adds another.
    figures = train.keys() - {"seconds/iteration", "seconds/compile"}
    assert figures == {"seq", "kind"} | names_of(ITERATION) | METRICS.keys()
    assert evaluation.keys() == {"seq", "kind"} | counts | names_of(EVALUATION) - {"eval_episodes_cut"}


def test_a_run_folder_that_exists_is_never_overwritten(tmp_path):
    make_trainer(run_dir=tmp_path / "run").train(total_steps=64)
    before = {path: path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file()}
    with pytest.raises(ludus.LudusError, match="exists already"):
        make_trainer(run_dir=tmp_path / "run")
    assert before == {path: path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file()}


def test_a_disk_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ludus.LudusError, match="cannot be written"):
        make_trainer(run_dir=tmp_path / "file" / "run")


def test_a_journal_on_a_full_disk_is_one_line_and_the_run_goes_on(tmp_path, monkeypatch, capsys):
    def full(operation, path):
        if operation == "before append":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "observe", full)
    trainer = make_trainer(run_dir=tmp_path / "run", verbose=True)
    with pytest.raises(ludus.LudusError, match=r"metrics.jsonl: cannot be written \(No space left on device\)"):
        trainer.train(total_steps=512)
    said = capsys.readouterr().err
    assert said.count("No space left on device); its rows are kept in memory, training goes on") == 1
    assert ludus.load_policy(tmp_path / "run")(np.zeros(4)) in (0, 1)
    monkeypatch.setattr(files, "observe", lambda operation, path: None)
    trainer.train(total_steps=576)
    rows = read_journal(tmp_path / "run")
    assert [row["seq"] for row in rows] == list(range(len(rows)))
    assert [row["steps"] for row in rows if row["kind"] == "train"] == list(range(64, 577, 64))


def test_a_policy_that_cannot_be_saved_is_one_line_and_stays_in_memory(tmp_path):
    trainer = make_trainer(run_dir=tmp_path / "run")
    trainer.train(total_steps=64)
    shutil.rmtree(tmp_path / "run" / "policies")
    (tmp_path / "run" / "policies").write_text("a file where the folder should be")
    with pytest.raises(ludus.LudusError, match=r"policies/\w+.safetensors: cannot be written"):
        trainer.train(total_steps=128)
    assert trainer.policy(np.zeros(4)) in (0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed=-1: must be an integer of at least 0"),
        ({"eval_frequency": -5}, "eval_frequency=-5"),
        ({"eval_episodes": 0}, "eval_episodes=0"),
        ({"collect": "halves"}, "collect=halves: must be one of steps, episodes, trajectories"),
        ({"num_envs": 3}, "num_envs=3: must divide algorithm.batch_size=64"),
    ],
)
def test_bad_trainer_options_are_named(options, message):
    with pytest.raises(ludus.LudusError, match=message.replace("(", r"\(")):
        make_trainer(**options)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"tracking": ludus.TrackingOptions(mlflow=True)}, "tracking.mlflow"),
        ({"video_frequency": 2}, "video_frequency"),
    ],
)
def test_what_reads_the_run_folder_is_refused_without_one(options, name):
    with pytest.raises(ludus.LudusError, match=f"^{name}: .* give run_dir"):
        make_trainer(**options).train(total_steps=64)


@pytest.mark.parametrize(
    "budget",
    [{}, {"total_steps": 0}, {"total_steps": -1}, {"total_steps": 10**30}, {"max_episodes": 0}, {"max_seconds": 0}],
)
def test_a_budget_must_be_given_and_positive(budget):
    with pytest.raises(ludus.LudusError, match=next(iter(budget), "give total_steps, max_episodes or max_seconds")):
        make_trainer().train(**budget)


@pytest.mark.requirement("S3.38")
@pytest.mark.requirement("S2.19")
def test_progress_is_plain_lines_in_a_file_and_nothing_if_not_verbose(capsys, monkeypatch):
    monkeypatch.setattr("ludus.runs.console.LINE_EVERY_SECONDS", 0.0)
    make_trainer(verbose=True).train(total_steps=512)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("jax:CartPole-v1 · 4 environments · seed 0")
    assert "100%" in lines[-2] and "steps/s" in lines[-2] and "return" in lines[-2]
    assert "evaluation return" in lines[-1]
    make_trainer(verbose=False).train(total_steps=64)
    captured = capsys.readouterr()
    assert captured.err == captured.out == ""


def test_progress_is_a_bar_in_a_terminal():
    code = textwrap.dedent(
        """
        import ludus
        ludus.Trainer(ludus.PPO(batch_size=64, minibatch_size=64), ludus.make_env("CartPole-v1", 4)).train(20_000)
        """
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # raised when the program has closed its end
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    assert process.wait() == 0
    text = shown.decode()
    assert "━" in text and "steps/s" in text and "left" in text


class Raising(PROBES["action-reward"]):
    """A JAX environment that calls back to Python, which raises after a while."""

    calls = 0

    def step(self, state, action, key):
        def callback(x):
            Raising.calls += 1
            if Raising.calls > 2000:
                raise RuntimeError("the simulator broke")
            return x

        shape = jax.ShapeDtypeStruct((), np.float32)
        reward = jax.pure_callback(callback, shape, action.astype(np.float32), vmap_method="sequential")
        return state, ludus.Step(state, reward, np.bool_(True))


def test_an_exception_inside_a_chunk_is_told_and_the_last_good_policy_saved(tmp_path):
    trainer = make_trainer(ludus.make_env(Raising(), num_envs=4), run_dir=tmp_path / "run")
    with pytest.raises(Exception, match="the simulator broke"):
        trainer.train(total_steps=1_000_000)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"
    assert np.isfinite(flat(ludus.load_policy(tmp_path / "run").state.parameters)).all()


class Threaded(Broken):
    """Minds which thread it lives on and writes into its actions."""

    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float64)

    def __init__(self):
        super().__init__()
        self.home = threading.get_ident()

    def reset(self, *, seed=None, options=None):
        assert threading.get_ident() == self.home
        return super().reset(seed=seed, options=options)

    def step(self, action):
        assert threading.get_ident() == self.home
        assert self.action_space.contains(action)
        action *= 2
        return super().step(action)


def test_a_host_environment_stays_on_its_thread_and_may_write_into_its_actions():
    trainer = make_trainer(ludus.make_env(Threaded, num_envs=2))
    assert trainer.train(total_steps=128).steps == 128


def test_numpy_numbers_are_numbers(tmp_path):
    ppo = ludus.PPO(**{**TINY, "learning_rate": np.float64(1e-3), "batch_size": np.int64(64)})
    trainer = make_trainer(ppo=ppo, seed=np.int64(3), run_dir=tmp_path / "run")
    trainer.train(total_steps=np.int64(64))
    config = read_config(tmp_path / "run")
    assert (config["algorithm"]["learning_rate"], config["seed"], config["total_steps"]) == (1e-3, 3, 64)


def test_what_is_refused_leaves_nothing_behind(tmp_path):
    with pytest.raises(ludus.LudusError):
        make_trainer(run_dir=tmp_path / "run").train()
    assert not (tmp_path / "run").exists()


def test_of_two_runs_in_one_folder_the_second_is_refused(tmp_path):
    first, second = make_trainer(run_dir=tmp_path / "run"), make_trainer(run_dir=tmp_path / "run")
    first.train(total_steps=64)
    with pytest.raises(ludus.LudusError, match="exists already"):
        second.train(total_steps=64)


def test_steps_that_are_done_are_not_trained_again():
    trainer = make_trainer()
    trainer.train(total_steps=128)
    with pytest.raises(ludus.LudusError, match="total_steps=128: 128 steps are done already"):
        trainer.train(total_steps=128)


@pytest.mark.parametrize("options", [{"learning_rate": np.inf}, {"entropy_coef": np.nan}, {"gamma": np.float32(7)}])
def test_numbers_that_are_not_finite_or_out_of_range_are_refused(options):
    with pytest.raises(ludus.LudusError, match=f"algorithm.{next(iter(options))}="):
        ludus.PPO(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": "abc"},
        {"learning_rate": None},
        {"epochs_per_update": 1.5},
        {"batch_size": "64"},
        {"anneal_learning_rate": "no"},
        {"network": "mlp"},
        {"optimizer": "adam"},
    ],
)
def test_values_of_another_kind_are_refused_by_name(options):
    with pytest.raises(ludus.LudusError, match=f"algorithm.{next(iter(options))}=.*: must be"):
        ludus.PPO(**options)


def test_what_is_no_algorithm_or_no_environment_is_refused():
    env = ludus.make_env("CartPole-v1", 4)
    for algorithm in (ludus.PPO, "ppo"):
        with pytest.raises(ludus.LudusError, match="must be an algorithm"):
            ludus.Trainer(algorithm, env)
    with pytest.raises(ludus.LudusError, match=r"must be made by ludus.make_env"):
        ludus.Trainer(ludus.PPO(), "CartPole-v1")


@pytest.mark.requirement("S1.29")
def test_what_was_learnt_is_handed_over_whatever_the_number_of_environments():
    def made(num_envs: int, size: int = 8) -> ludus.Trainer:
        algorithm = ludus.PPO(**TINY, network=ludus.MLP((size,)), normalize_rewards=True)
        return make_trainer(num_envs=num_envs, ppo=algorithm)

    old, new = made(4), made(2)
    old.train(total_steps=128)
    new.learner = old.learner  # before there is a state
    for _ in range(2):
        learner = new.learner
        jax.tree.map(np.testing.assert_array_equal, learner.parameters, old.learner.parameters)
        jax.tree.map(np.testing.assert_array_equal, learner.rewards, old.learner.rewards)
        assert learner.discounted.tolist() == [0.0, 0.0]
        new.train(total_steps=new.record.steps + 64)
        assert not np.array_equal(new.learner.parameters[0], old.learner.parameters[0])
        new.learner = old.learner
    with pytest.raises(ludus.LudusError, match="learner: was made by another algorithm or network"):
        made(2, size=9).learner = old.learner
