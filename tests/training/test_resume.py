"""A run that is stopped and resumed is the run that was not stopped."""

import contextlib
import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from resume_runs import CASES, OFTEN, algorithm, iterations, resumed_elsewhere, run, trainer
from safetensors.numpy import load_file

import ludus
from ludus.cli.main import main
from ludus.runs import recorder as records
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import read_config, read_identity
from ludus.runs.journal import read_journal
from ludus.training.checkpoint_writer import CheckpointOptions, Keeper
from ludus.training.past_policies import policy_at
from ludus.training.state_arrays import differences
from ludus.training.verify import journal_of, state_of, verify_resume

pytestmark = pytest.mark.slow


@pytest.mark.requirement("S2.21")
@pytest.mark.requirement("S4.13")
@pytest.mark.requirement("S4.12")
@pytest.mark.requirement("S0.31")
@pytest.mark.parametrize("case", CASES)
def test_half_and_half_is_the_whole_bit_by_bit_across_processes(case, tmp_path):
    straight = tmp_path / "straight"
    run(case, straight, 6)
    steps = Checkpoints(straight).steps()
    assert len(steps) >= 3
    resumed = resumed_elsewhere(straight, tmp_path / "resumed", steps[0])
    assert differences(state_of(straight), state_of(resumed)) == []
    assert journal_of(straight) == journal_of(resumed)
    assert Checkpoints(resumed).steps() == steps
    assert read_identity(resumed)["resumed"] == [{"steps": steps[0], "level": "exact"}]
    for name in ("final_actor", "final_critic", "best_return_pi_ckpt", "best_eval_pi_ckpt", "pi_ckpt1", "pi_ckpt3"):
        a, b = (folder / "policies" / f"{name}.safetensors" for folder in (straight, resumed))
        assert a.exists() == b.exists()
        assert not a.exists() or differences(load_file(a), load_file(b)) == [], name


@pytest.mark.requirement("S4.13")
def test_resume_starts_at_any_checkpoint_and_takes_back_what_came_after(tmp_path):
    run("ppo jax", tmp_path / "run", 8)
    journal, state = journal_of(tmp_path / "run"), state_of(tmp_path / "run")
    for step in Checkpoints(tmp_path / "run").steps():
        copy = shutil.copytree(tmp_path / "run", tmp_path / str(step))
        resumed = ludus.Trainer.resume(copy, step, verbose=False)
        assert resumed.record.steps == step
        resumed.final_episodes = 0
        resumed.train()
        assert differences(state_of(copy), state) == []
        assert journal_of(copy) == journal
        assert [row["seq"] for row in read_journal(copy)] == list(range(len(journal)))


@pytest.mark.requirement("S4.13")
def test_a_finished_run_goes_on_for_longer_as_if_it_had_never_ended(tmp_path):
    run("sac gym", tmp_path / "long", 8)
    run("sac gym", tmp_path / "short", 4)
    resumed = ludus.Trainer.resume(tmp_path / "short", total_steps=iterations("sac gym", 8), verbose=False)
    resumed.final_episodes = 0
    resumed.train()
    assert differences(state_of(tmp_path / "long"), state_of(tmp_path / "short")) == []
    assert journal_of(tmp_path / "long") == journal_of(tmp_path / "short")
    assert read_config(tmp_path / "short")["total_steps"] == iterations("sac gym", 8)


def test_a_finished_run_that_is_resumed_without_more_to_do_is_evaluated_and_ends(tmp_path):
    run("ppo jax", tmp_path / "run", 4)
    before = state_of(tmp_path / "run")
    result = ludus.Trainer.resume(tmp_path / "run", verbose=False).train()
    assert result.stopped_by == "total_steps"
    assert result.evaluation is not None
    assert differences(state_of(tmp_path / "run"), before) == []
    assert read_journal(tmp_path / "run")[-1]["kind"] == "evaluation"


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", 1), ("num_envs", 8), ("env", "Acrobot-v1"), ("algorithm.gamma", 0.9), ("collect", "episodes")],
)
def test_a_key_that_would_change_what_the_state_means_is_refused_by_name(key, value, tmp_path):
    run("ppo jax", tmp_path / "run", 2)
    with pytest.raises(ludus.LudusError, match=f"^{key}: cannot be changed in a resumed run"):
        ludus.Trainer.resume(tmp_path / "run", **{key: value})
    with pytest.raises(ludus.LudusError, match=r"^colour: cannot be changed in a resumed run; these can: total_steps"):
        ludus.Trainer.resume(tmp_path / "run", colour="red")


def test_a_config_that_was_edited_is_refused_by_name(tmp_path):
    run("ppo jax", tmp_path / "run", 2)
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("gamma: 0.99", "gamma: 0.9"))
    with pytest.raises(ludus.LudusError, match=r"algorithm.gamma=0.9: the checkpoint was written with 0.99"):
        ludus.Trainer.resume(tmp_path / "run")


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    for name in ("one", "two"):
        run("ppo jax", tmp_path / name, 2)
    shutil.rmtree(tmp_path / "one" / "checkpoints")
    shutil.copytree(tmp_path / "two" / "checkpoints", tmp_path / "one" / "checkpoints")
    with pytest.raises(ludus.LudusError, match="belongs to another run"):
        ludus.Trainer.resume(tmp_path / "one")


def test_two_processes_cannot_train_in_one_folder(tmp_path):
    run("ppo jax", tmp_path / "run", 2)
    first = ludus.Trainer.resume(tmp_path / "run", verbose=False)
    with pytest.raises(ludus.LudusError, match="another process is training here"):
        ludus.Trainer.resume(tmp_path / "run")
    first.record.folder.close()


def test_what_cannot_be_found_is_said_in_one_line(tmp_path):
    with pytest.raises(ludus.LudusError, match="is not a run folder"):
        ludus.Trainer.resume(tmp_path / "nothing")
    run("ppo jax", tmp_path / "run", 4)
    with pytest.raises(ludus.LudusError, match=r"no checkpoint 7; there are latest, best, 128, 192, 256$"):
        ludus.Trainer.resume(tmp_path / "run", 7)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(ludus.LudusError, match="has no checkpoint to go on from"):
        ludus.Trainer.resume(tmp_path / "run")


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again_exactly(tmp_path):
    run("ppo gym", tmp_path / "run", 3)
    state, journal = state_of(tmp_path / "run"), journal_of(tmp_path / "run")
    killed = shutil.copytree(tmp_path / "run", tmp_path / "killed")
    shutil.rmtree(killed / "checkpoints")
    identity = json.loads((killed / "run.json").read_text())
    (killed / "run.json").write_text(json.dumps({**identity, "status": "running", "first_checkpoint": None}))
    resumed = ludus.Trainer.resume(killed, verbose=False)
    resumed.final_episodes = 0
    resumed.train()
    assert differences(state_of(killed), state) == []
    assert journal_of(killed) == journal


@pytest.mark.requirement("S4.16")
def test_a_damaged_checkpoint_is_named_and_fallback_takes_the_one_before(tmp_path):
    run("ppo jax", tmp_path / "run", 6)
    state, journal = state_of(tmp_path / "run"), journal_of(tmp_path / "run")
    damaged = tmp_path / "run" / "checkpoints" / "384" / "state.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(ludus.LudusError, match=r"384/state.safetensors: has [\d,]+ bytes instead of"):
        ludus.Trainer.resume(tmp_path / "run", verbose=False).train()
    resumed = ludus.Trainer.resume(tmp_path / "run", fallback=True, verbose=False)
    assert resumed.record.steps == 256
    resumed.final_episodes = 0
    resumed.train()
    assert differences(state_of(tmp_path / "run"), state) == []
    assert journal_of(tmp_path / "run") == journal


@pytest.mark.requirement("S3.32")
@pytest.mark.requirement("S3.33")
@pytest.mark.requirement("S4.15")
@pytest.mark.requirement("S1.22")
def test_policies_on_the_way_and_the_best_are_kept(tmp_path):
    made = trainer("ppo jax", tmp_path / "run", num_checkpoints=3, recent_episodes_window=10)
    made.train(total_steps=64 * 12)
    folder = tmp_path / "run" / "policies"
    assert {path.stem for path in folder.iterdir()} == {
        "best_return_pi_ckpt", "best_eval_pi_ckpt", "pi_ckpt1", "pi_ckpt2", "pi_ckpt3", "final_actor", "final_critic",
    }  # fmt: skip
    for step, name in ((192, "pi_ckpt1"), (384, "pi_ckpt2"), (576, "pi_ckpt3")):
        half = trainer("ppo jax", None)
        half.train(total_steps=step)
        saved = ludus.load_policy(folder / f"{name}.safetensors")
        obs = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
        assert (saved(obs) == half.policy(obs)).all()
    evaluations = [row["eval_return_mean"] for row in read_journal(tmp_path / "run") if row["kind"] == "evaluation"]
    assert made.keeper.marks.best_evaluation == max(evaluations)


@pytest.mark.requirement("S2.20")
@pytest.mark.requirement("S4.12")
def test_a_checkpoint_comes_every_200_iterations_and_at_the_end(tmp_path):
    run("ppo jax", tmp_path / "run", 450, checkpoint=CheckpointOptions(), eval_frequency=0)
    assert Checkpoints(tmp_path / "run").steps() == [200 * 64, 400 * 64, 450 * 64]


@pytest.mark.requirement("S2.22")
@pytest.mark.requirement("S4.14")
def test_a_checkpoint_can_be_evaluated_while_the_run_is_locked(tmp_path, capsys):
    run("ppo jax", tmp_path / "run", 4)
    going_on = ludus.Trainer.resume(tmp_path / "run", verbose=False)
    half = trainer("ppo jax", None)
    half.train(total_steps=iterations("ppo jax", 2))
    expected = ludus.evaluate(half.policy, half.env, 5, seed=7).summary()
    words = ["evaluate", str(tmp_path / "run"), "--checkpoint", "128", "--episodes", "5", "--seed", "7", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == expected
    going_on.record.folder.close()


def test_the_best_return_is_the_mean_of_a_full_window():
    recorder = records.Recorder(verbose=False, options=records.RecordOptions(window=4))
    seen = []
    for episodes, total in ((1, 100.0), (2, 2.0), (0, 0.0), (1, 6.0), (3, 3.0), (2, 20.0)):
        counted = np.array([[episodes, total, *[0.0] * 5]])
        recorder._counted({"counted": counted, "running": [0], "waiting": [0]}, 0)
        seen.append(recorder.recent_return)
    assert seen == [None, None, None, 108 / 4, 9 / 4, 23 / 5]


@pytest.mark.requirement("S4.15")
def test_retention_keeps_the_last_the_best_and_every_nth(tmp_path):
    retention = {"keep_last": 2, "keep_best": 1, "keep_every": 5, "keep_bytes": 0}
    options = CheckpointOptions(1, every_minutes=0, best_by="iteration_time", **retention)
    run("ppo jax", tmp_path / "run", 12, checkpoint=options, eval_frequency=0)
    assert Checkpoints(tmp_path / "run").steps() == [5 * 64, 10 * 64, 11 * 64, 12 * 64]
    options = CheckpointOptions(1, every_minutes=0, keep_last=1, keep_best=2, keep_bytes=0, best_by="policy_loss")
    run("ppo jax", tmp_path / "best", 8, checkpoint=options, eval_frequency=0)
    losses = {row["steps"]: row["policy_loss"] for row in read_journal(tmp_path / "best")}
    best = sorted(losses, key=lambda step: losses[step])[-2:]
    assert Checkpoints(tmp_path / "best").steps() == sorted({*best, 8 * 64})
    assert Checkpoints(tmp_path / "best").best() == best[-1]


@pytest.mark.requirement("S4.15")
def test_the_best_checkpoint_is_the_one_that_was_evaluated_not_a_later_one(tmp_path):
    options = CheckpointOptions(1, every_minutes=0, keep_last=1, keep_best=1, keep_bytes=0)
    run("ppo jax", tmp_path / "run", 5, checkpoint=options, eval_frequency=3)
    assert Checkpoints(tmp_path / "run").best() == 3 * 64  # 4 and 5 know no newer evaluation than that of 3
    assert Checkpoints(tmp_path / "run").steps() == [3 * 64, 5 * 64]


def test_checkpoints_come_by_steps_and_by_minutes_too(tmp_path):
    options = CheckpointOptions(0, every_steps=150, every_minutes=0, keep_last=9)
    run("ppo jax", tmp_path / "steps", 6, checkpoint=options, eval_frequency=0)
    assert Checkpoints(tmp_path / "steps").steps() == [192, 320, 384]
    options = CheckpointOptions(0, every_minutes=1e-9, keep_last=9)
    run("ppo gym", tmp_path / "minutes", 3, checkpoint=options, eval_frequency=0)
    assert Checkpoints(tmp_path / "minutes").steps() == [64, 128, 192]


@dataclass(frozen=True)
class Keyed(ludus.Environment):
    """Keeps a typed key in its state, as environments of the newer JAX do."""

    observation_space = ludus.spaces.Box(0.0, 1.0, (1,))
    action_space = ludus.spaces.Discrete(2)
    max_episode_steps = 5

    def reset(self, key):
        return key, jnp.zeros(1)

    def step(self, state, action, key):
        state, used = jax.random.split(state)
        return state, ludus.Step(jax.random.uniform(used, (1,)), 1.0, jnp.asarray(False))


@pytest.mark.requirement("S4.13")
def test_a_state_with_a_typed_key_in_it_is_resumed_exactly(tmp_path):
    def trained(folder, **budget):
        settings = ludus.Settings(checkpoint=OFTEN, eval_frequency=0, verbose=False)
        made = ludus.Trainer(algorithm("ppo jax"), ludus.make_env(Keyed(), num_envs=4), settings, run_dir=folder)
        made.final_episodes = 0
        made.train(**budget)

    trained(tmp_path / "long", total_steps=256)
    trained(tmp_path / "short", total_steps=128)
    resumed = ludus.Trainer.resume(
        tmp_path / "short", env=ludus.make_env(Keyed(), num_envs=4), total_steps=256, verbose=False
    )
    resumed.final_episodes = 0
    resumed.train()
    assert read_identity(tmp_path / "short")["resumed"] == [{"steps": 128, "level": "exact"}]
    assert differences(state_of(tmp_path / "long"), state_of(tmp_path / "short")) == []


@pytest.mark.requirement("S1.22")
def test_a_first_evaluation_that_is_not_a_number_is_not_the_best_for_good(tmp_path):
    kept = []
    keeper = Keeper(CheckpointOptions(), 0, print)
    for value in (math.nan, -math.inf, 1.0, math.nan, 0.5, math.inf, 2.0):
        keeper.keep_if_best("evaluation", value, lambda: None)
        kept.append(keeper.marks.best_evaluation)
    assert kept == [None, None, 1.0, 1.0, 1.0, 1.0, 2.0]


class Forgetful(gymnasium.Env):
    """Its starts do not heed the seed, as those of a simulator with a hidden random state."""

    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    hidden = np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.hidden.normal(size=2).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        return self.hidden.normal(size=2).astype(np.float32), float(action), self.t >= 23, False, {}


class Remembering(Forgetful):
    """The same, but it can say where it is, and go back there."""

    def reset(self, *, seed=None, options=None):
        self.t, self.shown = 0, self.hidden.normal(size=2).astype(np.float32)
        return self.shown, {"height": 0.5}

    def step(self, action):
        self.t += 1
        self.shown = np.float32([np.sin(self.t) * self.shown[0], self.shown[1]])
        return self.shown, float(action), self.t >= 23, False, {"height": float(self.t)}

    def ludus_snapshot(self):
        return {"t": np.int64(self.t), "shown": self.shown}

    def ludus_restore(self, saved):
        self.t, self.shown = int(saved["t"]), np.float32(saved["shown"])
        return self.shown, {"height": 0.5}


def object_run(kind, folder: Path, **more):
    env = ludus.make_env(kind, num_envs=2)
    ppo = ludus.PPO(batch_size=32, minibatch_size=16, epochs_per_update=1, network=ludus.MLP((8,)))
    made = ludus.Trainer(
        ppo, env, ludus.Settings(checkpoint=OFTEN, eval_frequency=0, verbose=True, **more), run_dir=folder
    )
    made.final_episodes = 0
    return made


def test_an_environment_that_cannot_be_played_again_is_found_out_and_said(tmp_path, capsys):
    object_run(Forgetful, tmp_path / "run").train(total_steps=128)
    with pytest.raises(ludus.LudusError, match=r"is your own code: pass it again, as Trainer.resume\(..., env=...\)"):
        ludus.Trainer.resume(tmp_path / "run")
    with pytest.raises(
        ludus.LudusError,
        match=r"is your own code: in Python, pass it to ludus.training.past_policies.policy_at\(..., ",
    ):
        policy_at(tmp_path / "run", "latest")
    env = ludus.make_env(Forgetful, num_envs=2)
    assert ludus.evaluate(policy_at(tmp_path / "run", "latest", env=env), env, 2).lengths.tolist() == [23, 23]
    resumed = ludus.Trainer.resume(tmp_path / "run", env=ludus.make_env(Forgetful, num_envs=2), total_steps=256)
    resumed.final_episodes = 0
    resumed.train()
    assert "episode: the environments cannot be brought back to where they were" in capsys.readouterr().err
    assert read_identity(tmp_path / "run")["resumed"] == [{"steps": 128, "level": "episode"}]
    rows = read_journal(tmp_path / "run")
    # The two steps that did not happen are not counted, and no episode is longer than one can be.
    assert [row["steps"] for row in rows] == [32, 64, 96, 128, 158, 190, 222, 254, 286]
    assert max(row.get("episode_length_mean", 0) for row in rows) == 23


@pytest.mark.parametrize(
    ("case", "limit", "word"),
    [
        ("ppo gym", "ludus.envs.host.action_log.MOST_STEPS", "an episode has more than 3 steps"),
        ("sac gym workers", "ludus.envs.host.action_log.MOST_STEPS", "an episode has more than 3 steps"),
        ("ppo envpool", "ludus.envs.adapters.envpool.MOST_BYTES", "are kept no longer"),
    ],
)
def test_what_has_lasted_too_long_starts_anew_and_the_level_says_so(case, limit, word, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(limit, 3)
    run(case, tmp_path, 4, eval_frequency=0)
    assert caplog.text.count(word) == 1
    monkeypatch.undo()
    resumed = ludus.Trainer.resume(tmp_path, eval_frequency=0, verbose=False)
    resumed.final_episodes = 0
    with contextlib.closing(resumed.env):
        resumed.train(total_steps=iterations(case, 8))
    again = ludus.Trainer.resume(tmp_path, verbose=False)  # what began anew is recorded again
    with contextlib.closing(again.env):
        again.train()
    levels = [entry["level"] for entry in read_identity(tmp_path)["resumed"]]
    assert levels == ["episode", "exact"]


def test_an_environment_with_its_own_snapshot_is_exact(tmp_path):
    made = object_run(Remembering, tmp_path / "run")
    made.train(total_steps=96)
    copy = shutil.copytree(tmp_path / "run", tmp_path / "copy")
    resumed = ludus.Trainer.resume(copy, env=ludus.make_env(Remembering, num_envs=2), verbose=False)
    resumed.final_episodes = 0
    resumed.evaluate(1)
    assert read_identity(copy).get("resumed") is None
    resumed.train(total_steps=128)
    assert read_identity(copy)["resumed"] == [{"steps": 96, "level": "exact"}]
    made.train(total_steps=128)
    carried = [np.asarray(t.state.carry.env.episode_length) for t in (made, resumed)]
    assert (carried[0] == carried[1]).all()
    heights = [[row.get("info/height/mean") for row in journal_of(folder)] for folder in (tmp_path / "run", copy)]
    assert heights[0] == heights[1]


@pytest.mark.requirement("S2.21")
def test_verify_resume_proves_it_on_the_users_own_run(tmp_path, monkeypatch):
    run("sac gym", tmp_path / "run", 2)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    comparison = verify_resume(tmp_path / "run", 2)
    assert comparison.first_difference is None
    assert comparison.hashes == comparison.resumed_hashes
    assert "the same, bit by bit" in str(comparison)
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


def test_verify_resume_names_the_first_difference(tmp_path, monkeypatch):
    import ludus.training.verify as verify

    run("ppo jax", tmp_path / "run", 2)
    original = verify.state_of

    def tampered(folder):
        state = original(folder)
        if Path(folder).name == "resumed":
            state["learner/parameters/0"] = state["learner/parameters/0"] + np.float32(1e-7)
        return state

    monkeypatch.setattr(verify, "state_of", tampered)
    comparison = verify_resume(tmp_path / "run", 1)
    assert comparison.first_difference is not None
    assert "differs at learner/" in str(comparison)


def test_the_journal_of_a_run_that_lost_its_tail_is_not_resumed_from(tmp_path):
    run("ppo jax", tmp_path / "run", 4)
    journal = tmp_path / "run" / "metrics.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:1]))
    with pytest.raises(ludus.LudusError, match=r"metrics.jsonl: is shorter or other than it was"):
        ludus.Trainer.resume(tmp_path / "run", verbose=False).train()


def test_half_a_row_at_the_end_of_the_journal_is_cut(tmp_path):
    run("ppo jax", tmp_path / "run", 4)
    journal = tmp_path / "run" / "metrics.jsonl"
    rows = journal.read_text()
    journal.write_text(rows + json.dumps({"seq": 99})[:5])
    resumed = ludus.Trainer.resume(tmp_path / "run", verbose=False)
    resumed.final_episodes = 0
    resumed.train()
    assert journal.read_text() == rows
