"""Runs on a learned reward: resumed bit by bit, with a person's answers, on a given model, and with the alarm."""

import dataclasses
import json

import numpy as np
import pytest

import ludus
from ludus.algorithms.offline_reward import fit_preferences
from ludus.algorithms.reward_model import save_reward_model
from ludus.cli.main import main
from ludus.runs.journal import read_journal
from ludus.runs.questions import Questions
from ludus.runtime.demonstration_file import read_demonstrations
from ludus.runtime.preference_file import Preferences, as_line
from ludus.training.state_arrays import differences
from ludus.training.verify import state_of

pytestmark = pytest.mark.slow

SMALL = {"network": ludus.MLP((8,)), "segment_length": 8, "pool_size": 16, "fit_steps": 5, "batch_size": 8}
LABELS = SMALL | {"labels": 40, "queries": 8}
PPO = {"batch_size": 64, "minibatch_size": 32, "epochs_per_update": 1, "network": ludus.MLP((8,))}
SETTINGS = ludus.Settings(
    verbose=False, eval_frequency=0, eval_episodes_final=0, record_behaviour=False,
    checkpoint=ludus.CheckpointOptions(every_iterations=1, keep_last=10),
)  # fmt: skip


def played(length=8, episodes=40, seed=0) -> ludus.Demonstrations:
    """Segments of a policy that knows nothing."""
    env = ludus.make_env("Pendulum-v1", num_envs=4, max_episode_steps=length)
    policy = ludus.Trainer(ludus.PPO(**PPO), env, SETTINGS).policy
    return ludus.record_demonstrations(policy, env, episodes, seed=seed, random_actions=1.0)


@pytest.fixture(scope="module")
def segments(tmp_path_factory):
    path = tmp_path_factory.mktemp("segments") / "segments.safetensors"
    ludus.write_demonstrations(played(), path)
    return path


def train(algorithm, source, folder, iterations, steps=64, env="Pendulum-v1", **changes):
    env = ludus.make_env(env, num_envs=4)
    settings = dataclasses.replace(SETTINGS, **changes)
    trainer = ludus.Trainer(ludus.LearnedReward(algorithm, source), env, settings, run_dir=folder)
    trainer.train(total_steps=steps * iterations)
    return trainer, read_journal(folder)


SOURCES = {
    "preferences": lambda path: ludus.PreferenceReward(**(LABELS | {"network": ludus.GRU(4, (4,))})),
    "regression": lambda path: ludus.RegressionReward(**LABELS),
    "demonstrations": lambda path: ludus.DemonstrationReward(**SMALL, demonstrations=str(path)),
}
SAC = {"learning_starts": 32, "batch_size": 8, "replay_size": 256, "unroll_length": 16, "updates_per_step": 0.1}


@pytest.mark.requirement("S4.13", "S0.20")
@pytest.mark.parametrize("name", SOURCES)
def test_a_run_on_a_learned_reward_resumes_bit_by_bit(tmp_path, segments, name):
    algorithm = ludus.SAC(**SAC, network=ludus.MLP((8,))) if name == "regression" else ludus.PPO(**PPO)
    source = SOURCES[name](segments)
    run = tmp_path / "run"
    train(algorithm, source, run, 7)
    state = state_of(run)
    ludus.Trainer.resume(run, 64 * 3, verbose=False).train()
    assert differences(state, state_of(run)) == []
    beginnings = {"/".join(key.split("/")[:2]) for key in state}
    assert {"learner/learner", "learner/fitted", "learner/data", "learner/pool", "learner/paid"} <= beginnings
    # What is left of it: a policy that knows of no reward model, and the reward model alone.
    policy, model = ludus.load_policy(run), ludus.load_reward_model(run)
    assert type(policy.algorithm) is type(algorithm) and policy(np.zeros(3, np.float32)).shape == (1,)
    obs = np.zeros((2, 3), np.float32)
    assert np.isfinite(model(obs, np.zeros((2, 1), np.float32), obs)).all()
    assert main(["evaluate", str(run), "--episodes", "2"]) == 0
    assert main(["evaluate", str(run), "--episodes", "2", "--checkpoint", "latest"]) == 0


def test_environments_outside_jax_learn_from_the_same_rewards(tmp_path):
    _, rows = train(ludus.PPO(**PPO), ludus.PreferenceReward(**LABELS), tmp_path / "run", 3, env="gym:Pendulum-v1")
    assert [row["labels"] for row in rows] == sorted(row["labels"] for row in rows) and rows[-1]["labels"] > 8


def test_whole_episodes_and_schedules_and_the_command_line(tmp_path):
    words = "reward=preferences reward.labels=40 reward.segment_length=8 reward.network.hidden_sizes=[8]"
    words += " reward.learning_rate=linear:1e-3:0 algorithm.batch_size=800 algorithm.minibatch_size=400"
    words += f" env=Pendulum-v1 num_envs=4 collect=trajectories total_steps=1600 verbose=false run_dir={tmp_path}/run"
    assert main(["train", *words.split(), "eval_episodes_final=2", "eval_frequency=0"]) == 0
    rows = read_journal(tmp_path / "run")
    assert rows[0]["hyperparameter/reward.learning_rate"] == pytest.approx(1e-3)
    assert rows[0]["learned_return"] != rows[0]["true_return"] == pytest.approx(rows[0]["episode_return_mean"])
    assert main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report" / "index.html").read_text()
    assert "Learned against true return" in page


# A model that is given, and the alarm


def fitted(path, hacked: bool):
    """A model of preferences that look at the pendulum as they should, or, by a planted flaw, for speed alone."""
    demos = played(25, 300, seed=1)
    worth = demos.obs[:, 2] ** 2 if hacked else demos.reward
    sums = worth.reshape(300, 25).sum(axis=1)
    first, second = np.random.default_rng(0).permuted(np.tile(np.arange(300), (2, 2)), axis=1)
    first, second = first[first != second], second[first != second]
    preferences = Preferences(first, second, (sums[first] > sums[second]).astype(np.float32))
    source = ludus.PreferenceReward(network=ludus.MLP((32,)), fit_steps=1000, learning_rate=3e-3)
    model, _ = fit_preferences(source, demos, preferences)
    save_reward_model(model, path)


@pytest.mark.requirement("S0.20")
@pytest.mark.parametrize("hacked", [True, False], ids=["hacked", "honest"])
def test_a_reward_that_can_be_hacked_sets_off_the_alarm_and_an_honest_one_does_not(tmp_path, hacked, capsys):
    fitted(tmp_path / "model.safetensors", hacked)
    ppo = ludus.PPO(
        batch_size=2048, minibatch_size=256, epochs_per_update=6, learning_rate=3e-3, gamma=0.9, entropy_coef=0.0,
        network=ludus.MLP((32,)),
    )  # fmt: skip
    source = ludus.PreferenceReward(model=str(tmp_path / "model.safetensors"), network=ludus.MLP((32,)), pool_size=128)
    _, rows = train(ppo, source, tmp_path / "run", 30, 2048, verbose=True)
    alarms = [row["reward_alarm"] for row in rows]
    first, last = rows[0], rows[-1]
    assert last["learned_return"] > first["learned_return"] + 50
    assert bool(sum(alarms)) is hacked
    assert (last["true_return"] > first["true_return"]) is not hacked
    said = (tmp_path / "run" / "log.txt").read_text()
    assert said.count("warning: the learned reward rises") == int(hacked)
    assert ("reward_accuracy" in last) is False


# People


def test_a_person_is_asked_by_files_and_the_run_learns_from_the_answers(tmp_path, capsys, monkeypatch):
    source = ludus.PreferenceReward(**LABELS, labeller="file", first_labels=1.0)
    trainer, rows = train(ludus.PPO(**PPO), source, tmp_path / "run", 3)
    assert {row["labels"] for row in rows} == {0.0} and not any("reward_loss" in row for row in rows)
    assert rows[-1]["learned_return"] == 0.0 if "learned_return" in rows[-1] else True
    questions = Questions(tmp_path / "run")
    assert questions.count >= 8 and questions.open == list(range(questions.count))
    data = trainer.state.learner.data
    np.testing.assert_array_equal(
        questions.segments.obs.reshape(-1, 2, 8, 3)[:8], np.asarray(data.segments.obs)[:8, :, :-1]
    )
    answers = iter(["what?", "1", "2", "s", "=", "1", "q"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(answers))
    assert main(["reward", "ask", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr()
    assert "question 1 of" in shown.out and "type 1, 2, =, s or q" in shown.err
    assert Questions(tmp_path / "run").open[:2] == [2, 5]
    again = ludus.Trainer.resume(tmp_path / "run", verbose=False, total_steps=64 * 5)
    again.train()
    after = again.state.learner.data
    np.testing.assert_array_equal(np.asarray(after.is_answered)[:6], [True, True, False, True, True, False])
    np.testing.assert_array_equal(np.asarray(after.label)[[0, 1, 3, 4]], [1.0, 0.0, 0.5, 1.0])
    rows = read_journal(tmp_path / "run")
    assert [row["labels"] for row in rows][-2:] == [4.0, 4.0] and any("reward_loss" in row for row in rows)
    # The questions of the run are segments, and the answers preferences, as any others.
    run = tmp_path / "run" / "reward"
    words = ["--preferences", str(run / "preferences.jsonl"), "--segments", str(run / "segments")]
    assert main(["reward", "evaluate", str(tmp_path / "run"), *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["preferences"] == 4


def test_questions_that_a_resumed_run_takes_back_are_no_longer_asked(tmp_path):
    source = ludus.PreferenceReward(**LABELS, labeller="file", first_labels=0.1, labels_until=1.0)
    train(ludus.PPO(**PPO), source, tmp_path / "run", 8)
    asked = Questions(tmp_path / "run").count
    lines = b"".join(as_line(2 * i, 2 * i + 1, "first") for i in range(asked))
    (tmp_path / "run" / "reward" / "preferences.jsonl").write_bytes(lines)
    trainer = ludus.Trainer.resume(tmp_path / "run", 64 * 5, verbose=False)
    before = int(trainer.state.learner.data.asked)
    assert before < asked
    trainer.train()
    data = trainer.state.learner.data
    assert np.asarray(data.is_answered).sum() == before  # what was answered since is of other segments
    kept = np.asarray(data.segments.obs)[: int(data.asked), :, :-1].reshape(-1, 3)
    stored = Questions(tmp_path / "run").segments.obs
    np.testing.assert_array_equal(stored, kept[: len(stored)])
    assert len(stored) >= 16 * before


def test_who_asks_by_files_needs_a_folder():
    env = ludus.make_env("Pendulum-v1", num_envs=4)
    algorithm = ludus.LearnedReward(ludus.PPO(**PPO), ludus.PreferenceReward(**LABELS, labeller="file"))
    with pytest.raises(ludus.LudusError, match=r"^reward.labeller=file: asks by files in the run folder; give run_dir"):
        ludus.Trainer(algorithm, env, SETTINGS).train(total_steps=64)


# The command line


def refused(capsys, *words) -> str:
    assert main([str(word) for word in words]) == 2
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0, said
    return said


def test_models_are_fitted_judged_and_trained_on(tmp_path, segments, capsys):
    demos = read_demonstrations(segments)
    better = demos.returns[:20] > demos.returns[20:40]
    lines = b"".join(as_line(i, i + 20, "first" if x else "second") for i, x in enumerate(better.tolist()))
    (tmp_path / "preferences.jsonl").write_bytes(lines)
    given = ["--preferences", tmp_path / "preferences.jsonl", "--segments", segments]
    words = [str(word) for word in (*given, "--out", tmp_path / "model.safetensors", "--steps", 50)]
    assert main(["reward", "fit", *words, "reward.network.hidden_sizes=[8]"]) == 0
    assert "20 preferences" in capsys.readouterr().out
    assert main(["reward", "evaluate", str(tmp_path / "model.safetensors"), *map(str, given), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["preferences"] == 20 and 0 <= figures["accuracy"] <= 1 and "correlation" in figures
    model = ludus.load_reward_model(tmp_path / "model.safetensors")
    assert model.state.network.shapes[0] == (8,) or (7, 8) in model.state.network.shapes
    run = f"env=Pendulum-v1 num_envs=4 reward=preferences reward.model={tmp_path}/model.safetensors"
    run += f" algorithm.batch_size=128 algorithm.minibatch_size=64 total_steps=128 verbose=false run_dir={tmp_path}/run"
    assert main(["train", *run.split(), "eval_episodes_final=2"]) == 0
    same = ludus.load_reward_model(tmp_path / "run").state
    for a, b in zip(model.state.parameters, same.parameters, strict=True):
        np.testing.assert_array_equal(a, b)
    # Mistakes, each in one line.
    assert "exists already" in refused(capsys, "reward", "fit", *words)
    refuse = refused(capsys, "train", "env=CartPole-v1", "reward=preferences", f"reward.model={tmp_path}/run")
    assert "its observation space is Box" in refuse
    assert "no such action" in refused(capsys, "reward", "guess")
    assert "reward.key=value alone" in refused(capsys, "reward", "fit", *given, "--out", tmp_path / "x", "seed=1")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"first": 0, "second": 40, "prefer": "first"}', "line 2: second=40: there are segments 0 to 39"),
        (b'{"first": 0, "prefer": "first"}', "line 2: has no second"),
        (b'{"first": 1, "second": 1, "prefer": "first"}', "line 2: compares segment 1 with itself"),
        (b'{"first": 0, "second": 1, "prefer": "third"}', "line 2: prefer=third: must be one of first, second, equal"),
        (b'{"first": 0.5, "second": 1, "prefer": "first"}', "line 2: first=0.5: there are segments"),
        (b'[0, 1, "first"]', "line 2: must be an object"),
        (b'{"first": 0,', "line 2: is not JSON"),
        (b"\xff\xfe", "cannot be read as preferences"),
        (b'{"x": "' + b"x" * 10_001 + b'"}', "line 2: has 10,010 characters"),
    ],
)
def test_preferences_that_make_no_sense_are_refused_in_one_line(tmp_path, segments, capsys, line, message):
    path = tmp_path / "preferences.jsonl"
    path.write_bytes(as_line(0, 1, "first") + line + b"\n")
    said = refused(capsys, "reward", "fit", "--preferences", path, "--segments", segments, "--out", tmp_path / "m")
    assert message in said


def test_files_that_do_not_fit_are_refused_in_one_line(tmp_path, segments, capsys):
    (path := tmp_path / "preferences.jsonl").write_bytes(as_line(0, 1, "first") * 10)
    ragged = dataclasses.replace(played(8, 2))
    ended = np.zeros(16, bool)
    ended[[3, 15]] = True
    ragged = dataclasses.replace(ragged, truncated=ended, terminated=np.zeros(16, bool))
    ludus.write_demonstrations(ragged, tmp_path / "ragged.safetensors")
    fit = ["reward", "fit", "--preferences", path, "--out", tmp_path / "m", "--segments"]
    assert "segments 0 and 1 have 4 and 12 steps" in refused(capsys, *fit, tmp_path / "ragged.safetensors")
    path.write_bytes(b"")
    assert "holds no preferences" in refused(capsys, *fit, segments)
    assert "no such" in refused(capsys, *fit, tmp_path / "nothing.safetensors")
    assert "asks nobody" in refused(capsys, "reward", "ask", tmp_path)
    words = ["train", "env=CartPole-v1", "reward=demonstrations"]
    assert "observation space" in refused(capsys, *words, f"reward.demonstrations={segments}")
    assert "required" in refused(capsys, *words)
    # A model whose arrays are of another width than its header says.
    from safetensors import safe_open
    from safetensors.numpy import save_file

    train(ludus.PPO(**PPO), ludus.PreferenceReward(**LABELS), tmp_path / "run", 1)
    final = tmp_path / "run" / "policies" / "final_reward.safetensors"
    with safe_open(final, framework="numpy") as handle:
        header, arrays = handle.metadata(), {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    from ludus.algorithms.policy_file import checksum

    name = next(name for name in arrays if name.endswith("torso/layers/0/kernel"))
    arrays[name] = np.ascontiguousarray(arrays[name][:, :, :4])
    header = {key: value for key, value in header.items() if key != "sha256"}
    save_file(arrays, final, {**header, "sha256": checksum(header, arrays)})
    said = refused(capsys, "train", "env=Pendulum-v1", "reward=preferences", f"reward.model={final}")
    assert "is float32[3, 7, 4], but the network has float32[3, 7, 8]" in said
