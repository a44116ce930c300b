"""When a run is over, an episode of each policy that it keeps is there, and the report shows it."""

import gymnasium
import jax
import numpy as np
import pytest

import ludus
from ludus.report.html.make import make_report
from ludus.runs.episode_file import read_episodes
from ludus.runs.folder import read_identity
from ludus.training import kept_episodes
from ludus.training.record_episode import play_episode

pytestmark = pytest.mark.slow

PPO = {"batch_size": 64, "minibatch_size": 32, "epochs_per_update": 1, "network": ludus.MLP((8,))}


@pytest.fixture(autouse=True)
def time_enough(monkeypatch):
    """Let the machine be busy."""
    monkeypatch.setattr(kept_episodes, "SECONDS", 60.0)


def trained(run, env, iterations=8, **options):
    settings = {"eval_frequency": 2, "eval_episodes": 2, "num_checkpoints": 2, "verbose": False} | options
    trainer = ludus.Trainer(ludus.PPO(**PPO), env, ludus.Settings(**settings), run_dir=run)
    trainer.final_episodes = 2
    trainer.train(total_steps=64 * iterations)
    return trainer


@pytest.mark.requirement("S4.19")
@pytest.mark.requirement("S4.20")
def test_the_report_of_a_fresh_run_shows_how_the_walker_walks(tmp_path):
    trained(tmp_path / "run", ludus.make_env("gym:BipedalWalker-v3", num_envs=2), 4, num_checkpoints=1)
    episodes = read_episodes(tmp_path / "run")
    assert {"final", "pi_ckpt1", "best_eval_pi_ckpt"} <= episodes.keys()
    report = make_report([tmp_path / "run"])
    panels = {panel.key: panel for figure in report.figures for panel in figure.panels}
    for signal in ("hip 1 angle", "knee 1 angle", "hip 2 angle", "knee 2 angle", "hull angle", "hull velocity x"):
        drawn = {trace["meta"]["episode"] for trace in panels[f"signal/{signal}"].traces}
        assert drawn == episodes.keys()
    assert {"calibration", "foresight"} <= panels.keys()


@pytest.mark.requirement("S4.22")
@pytest.mark.parametrize("id", ["jax:Pendulum-v1", "gym:CartPole-v1"])
def test_every_policy_that_is_kept_has_its_episode_of_the_runs_own_evaluation(tmp_path, id):
    env = ludus.make_env(id, num_envs=4)
    trainer = trained(tmp_path / "run", env)
    episodes = read_episodes(tmp_path / "run")
    kept = {path.stem for path in (tmp_path / "run/policies").glob("*_ckpt*.safetensors")}
    assert episodes.keys() == {"final", *kept} and {"pi_ckpt1", "pi_ckpt2", "best_eval_pi_ckpt"} <= kept
    assert [episodes[name].about.steps for name in ("pi_ckpt1", "pi_ckpt2", "final")] == [192, 384, 512]
    assert list(episodes)[-1] == "final"
    for name, episode in episodes.items():
        policy = trainer.policy if name == "final" else ludus.load_policy(tmp_path / f"run/policies/{name}.safetensors")
        again = play_episode(policy, env, trainer.critic, seed=0)
        np.testing.assert_allclose(episode.arrays["return"], again.arrays["return"], rtol=1e-5)
        assert ("value" in episode.arrays) == (name == "final")  # the others' critics are not kept


@pytest.mark.parametrize("id", ["jax:CartPole-v1", "gym:CartPole-v1"])
def test_training_is_the_same_bit_for_bit_with_and_without(tmp_path, id):
    states = []
    for is_wanted in (True, False):
        env = ludus.make_env(id, num_envs=2)
        trainer = trained(tmp_path / str(is_wanted), env, 4, record_behaviour=is_wanted)
        trainer.train(total_steps=64 * 6)  # and in what follows
        states.append(jax.tree.leaves(trainer.state))
        assert (tmp_path / str(is_wanted) / "episodes").is_dir() == is_wanted
    assert all(np.array_equal(a, b) for a, b in zip(*states, strict=True))


class Endless(gymnasium.Env):
    """Never ends, and shows a picture."""

    observation_space = gymnasium.spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((16, 16, 3), np.uint8), {}

    def step(self, action):
        return np.zeros((16, 16, 3), np.uint8), 1.0, False, False, {}


def test_what_is_recorded_has_bounds(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_episodes, "MOST_BYTES", 768 * 50)
    env = ludus.make_env(Endless(), max_episode_steps=150)
    trained(tmp_path / "run", env, 2, eval_frequency=0, num_checkpoints=0)
    for episode in read_episodes(tmp_path / "run").values():
        assert len(episode) == 50 and episode.about.truncated and not episode.about.terminated
    monkeypatch.setattr(kept_episodes, "SECONDS", 0.0)
    monkeypatch.setattr(kept_episodes, "SHARE", 0.0)
    trained(tmp_path / "late", env, 2, eval_frequency=0)
    assert read_episodes(tmp_path / "late") == {}


def test_an_environment_that_fails_then_costs_one_line(tmp_path, monkeypatch, capsys):
    def fails(*_, **__):
        raise RuntimeError("no more\nof this")

    monkeypatch.setattr(kept_episodes, "play_episode", fails)
    trained(tmp_path / "run", ludus.make_env("CartPole-v1", num_envs=2), 2, verbose=True)
    assert "no episode of it could be recorded (no more)" in capsys.readouterr().err.replace("\n", " ")
    assert read_identity(tmp_path / "run")["status"] == "finished"
