"""The symptoms of docs/en/troubleshooting.md, brought about on purpose and mended as the page says."""

import re
from pathlib import Path

import pytest
from places import DOCS

import ludus
from ludus.runs.journal import read_journal

pytestmark = [pytest.mark.slow, pytest.mark.requirement("S1.33")]
PAGE = DOCS / "troubleshooting.md"


def train(run: Path, steps: int = 16_384, **hyperparameters) -> list[dict]:
    settings = {"batch_size": 512, "minibatch_size": 128, "epochs_per_update": 8, **hyperparameters}
    env = ludus.make_env("CartPole-v1", 8)
    trainer = ludus.Trainer(ludus.PPO(**settings), env, ludus.Settings(eval_frequency=0, verbose=False), run_dir=run)
    trainer.final_episodes = 0
    trainer.train(total_steps=steps)
    return [row for row in read_journal(run) if row["kind"] == "train"]


def mean(rows: list[dict], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


def worst(rows: list[dict], name: str) -> float:
    return max(row[name] for row in rows)


def test_a_learning_rate_that_is_too_small_shows_in_the_kl(tmp_path):
    slow, mended = train(tmp_path / "slow", learning_rate=1e-6), train(tmp_path / "mended", learning_rate=1e-3)
    assert mean(slow, "approx_kl") < 1e-3 < mean(mended, "approx_kl")
    assert slow[-1]["entropy"] > 0.99 * slow[0]["entropy"]
    first, later = (max(row.get("episode_return_mean", 0.0) for row in rows[-8:]) for rows in (slow, mended))
    assert later > 3 * first


def test_updates_that_go_too_far_show_in_kl_and_clipping_and_a_lower_rate_mends_them(tmp_path):
    wild = train(tmp_path / "wild", learning_rate=0.1, max_grad_norm=100.0)
    limited = train(tmp_path / "limited", learning_rate=0.1, max_grad_norm=100.0, target_kl=0.01)
    mended = train(tmp_path / "mended", learning_rate=1e-3, max_grad_norm=100.0)
    assert worst(wild, "approx_kl") > 0.02 and worst(wild, "clip_fraction") > 0.3
    # Its first minibatch has gone too far already: the harm is limited, not undone.
    assert 0.02 < worst(limited, "approx_kl") < worst(wild, "approx_kl")
    assert worst(limited, "clip_fraction") < worst(wild, "clip_fraction")
    assert worst(mended, "approx_kl") < 0.02 and worst(mended, "clip_fraction") < 0.3
    assert max(row.get("episode_return_mean", 0.0) for row in mended[-8:]) > 200


def test_accumulation_needs_less_memory_for_the_same_gradient():
    import jax

    from ludus.algorithms.hyperparameters import as_arrays
    from ludus.types import Spec

    env = ludus.make_env("CartPole-v1", 8)
    spec = Spec(env.observation_space, env.action_space, 8)
    needed = {}
    for parts in (1, 16):
        ppo = ludus.PPO(batch_size=4096, minibatch_size=4096, epochs_per_update=1, accumulation_steps=parts)
        state = ppo.init(jax.random.key(0), spec)
        from ludus.rollout import compiled
        from ludus.types import RolloutKeys

        keys = RolloutKeys(*jax.random.split(jax.random.key(1), 4))
        carry = compiled.begin(ppo, env, ppo.policy(state), jax.random.key(2))
        collected = compiled.collect(as_arrays(ppo), env, ppo.policy(state), carry, keys, 512, False)[1]
        program = jax.jit(type(ppo).update).lower(as_arrays(ppo), state, collected, jax.random.key(3)).compile()
        needed[parts] = program.memory_analysis().temp_size_in_bytes
    assert needed[16] < needed[1]


def test_seeing_everything_is_one_command(tmp_path, capsys, monkeypatch):
    from ludus.cli.main import main

    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^ludus (train .*log_frequency=1 .*)$", PAGE.read_text(), re.MULTILINE)
    assert main([*command.split(), "total_steps=6144", "eval_episodes=1", "run_dir=run"]) == 0
    shown = capsys.readouterr().err
    rows = read_journal(tmp_path / "run")
    training = [row for row in rows if row["kind"] == "train"]
    assert shown.count("ROLLOUT STATISTICS") == len(training) > 1
    assert all("episode_returns" in row for row in training)
    assert sum(row["kind"] == "evaluation" for row in rows) == len(training)
