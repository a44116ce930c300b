"""A scenario trainer's launch line, its counts and its keys."""

import re

import pytest

import ludus
from ludus.compat.scenario_train import scalars, train, translated
from ludus.runs.journal import read_journal
from ludus.training.config import build, compose
from ludus.types import LudusError


def told(*words: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in translated(words))


@pytest.mark.requirement("S2.1", "S2.23", "S2.3")
def test_its_launch_line_is_one_of_ours():
    made = told(
        "total_timesteps=300000", "path_dataset=roads", "algorithm=sac", "network/encoder=lq", "num_envs=8",
        "algorithm.learning_start=50", "algorithm.unroll_length=2", "reward_config.progression=0.3",
        "termination_keys=[overlap]", "save_freq=20", "network=base",
    )  # fmt: skip
    folder = made.pop("run_dir")
    assert re.fullmatch(r"runs/SAC_VEC_LQ_\d\d-\d\d_\d\d:\d\d:\d\d", folder)
    assert made == {
        "env": "driving",
        "preset": "null",
        "total_steps": "300000",
        "num_envs": "8",
        "seed": "0",
        "checkpoint.every_iterations": "20",
        "algorithm": "sac",
        "network/encoder": "lq",
        "env_options.scenarios": "roads",
        "env_options.termination_keys": "[overlap]",
        "env_options.reward.progress": "0.3",
        "algorithm.learning_rate": "3e-4",
        "algorithm.gamma": "0.99",
        "algorithm.tau": "0.005",
        "algorithm.alpha": "0.2",
        "algorithm.automatic_alpha": "false",
        "algorithm.batch_size": "64",
        "algorithm.replay_size": "100000",
        "algorithm.unroll_length": "2",
        "algorithm.learning_starts": "400",  # 50 steps of each
        "algorithm.updates_per_step": "0.25",  # 4 in an iteration of 2 x 8
    }
    assert "SAC_VEC_" in told()["run_dir"] and told("run_dir=here")["run_dir"] == "here"


@pytest.mark.requirement("S2.24")
@pytest.mark.parametrize("algorithm", ["sac", "ppo", "bc", "bc_sac"])
def test_what_it_becomes_is_known_here(algorithm):
    config = compose(translated([f"algorithm={algorithm}", "env=Pendulum-v1", "network/encoder=none"]))
    assert (config.num_envs, config.total_steps, config.checkpoint.every_iterations) == (16, 20_000_000, 200)
    parts = build(config)
    parts.env.close()
    if algorithm == "ppo":
        assert (parts.algorithm.batch_size, parts.algorithm.minibatch_size) == (640, 160)
        assert (parts.algorithm.epochs_per_update, parts.algorithm.network.hidden_sizes) == (4, (256, 256))
    else:
        kinds = {"sac": ludus.SAC, "bc": ludus.BC, "bc_sac": ludus.BCSAC}
        assert type(parts.algorithm) is kinds[algorithm] and parts.algorithm.learning_rate == 3e-4


@pytest.mark.slow
@pytest.mark.requirement("S2.11", "S2.12", "S2.14", "S2.16", "S2.19")
def test_warm_up_and_gradient_steps_are_counted_as_there(tmp_path):
    """Three environments, five steps of chance in each; then five gradient steps in each iteration of two steps."""
    words = (
        "env=Pendulum-v1", "algorithm=sac", "total_timesteps=120", "num_envs=3", "algorithm.learning_start=5",
        "algorithm.grad_updates_per_step=5", "algorithm.unroll_length=2", "algorithm.batch_size=8",
        "algorithm.buffer_size=200", "algorithm.network.hidden_sizes=[8]", "eval_freq=0", "eval_episodes_final=2",
        "verbose=false", f"run_dir={tmp_path / 'run'}",
    )  # fmt: skip
    result = train(words)
    rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "train"]
    assert result.steps == 120 and [row["steps"] for row in rows] == list(range(6, 121, 6))
    # 15 steps of warm-up end in the third iteration: half of that one learns, and what is owed is carried on.
    assert [row["updates"] for row in rows] == [0, 0] + [(5 * (2 * n + 1)) // 2 for n in range(18)]
    curves = scalars(tmp_path / "run")
    assert curves["runtime/sps"] and all(value > 0 for _, value in curves["runtime/sps"])
    assert [step for step, _ in curves["train/policy_loss"]] == [row["steps"] for row in rows[2:]]
    assert curves["evaluation/ep_rew_mean"] == [(120, result.evaluation.returns.mean())]
    assert not any(key.startswith("metrics/") for key in curves)  # a pendulum drives nowhere


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["total_timesteps"], "total_timesteps: expected key=value"),
        (["algorithm=dqn"], "algorithm=dqn: must be one of sac, bc_sac, ppo, bc"),
        (["max_num_objects=64"], "max_num_objects=64: leave it out; give env_options.num_cars"),
        (["observation_type=road"], "observation_type=road: must be vec, or left out"),
        (["reward_config.speed=1"], "reward_config.speed: must be one of reward_config.overlap"),
        (["num_envs=many"], "num_envs=many: must be an integer of at least 1"),
        (["algorithm=ppo", "algorithm.batch_size=128"], "algorithm.batch_size: leave it out"),
    ],
)
def test_a_mistake_is_one_line(words, said):
    with pytest.raises(LudusError, match=re.escape(said)) as error:
        translated(words)
    assert "\n" not in str(error.value)


def test_what_neither_knows_is_named():
    with pytest.raises(LudusError, match="network/encoder=mtr"):
        compose(translated(["network/encoder=mtr"]))
    with pytest.raises(LudusError, match=r"eval_frq.*did you mean"):
        compose(translated(["eval_frq=1"]))
