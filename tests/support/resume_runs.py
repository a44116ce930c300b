"""Small runs that are resumed, killed and damaged by the tests."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ludus
from ludus.training.checkpoint_writer import CheckpointOptions
from ludus.training.verify import go_on

OFTEN = CheckpointOptions(every_iterations=2, every_minutes=0, keep_last=100)

PPO = {"batch_size": 64, "minibatch_size": 32, "epochs_per_update": 2}
SAC = {"learning_starts": 40, "batch_size": 16, "unroll_length": 8, "replay_size": 150}
SMALL = ludus.MLP((16, 16))
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # name: (environment, what make_env is given besides, what the trainer is given besides)
    "ppo jax": ("jax:CartPole-v1", {}, {}),
    "ppo jax annealed": ("jax:Pendulum-v1", {}, {}),
    "ppo jax gru": ("jax:CartPole-v1", {}, {}),
    "sac jax": ("jax:Pendulum-v1", {}, {}),
    "ppo jax gru branches": ("jax:CartPole-v1", {}, {}),
    "ppo gym": ("gym:CartPole-v1", {}, {}),
    "ppo gym branches": ("gym:CartPole-v1", {}, {}),
    "ppo gym gru": ("gym:Acrobot-v1", {}, {}),
    "ppo gym episodes": ("gym:CartPole-v1", {}, {"collect": "episodes"}),
    "ppo gym workers": ("gym:CartPole-v1", {"num_workers": 2}, {}),
    "sac gym": ("gym:Pendulum-v1", {}, {}),
    "sac gym workers": ("gym:Pendulum-v1", {"num_workers": 2}, {}),
    "ppo envpool": ("envpool:CartPole-v1", {}, {}),
    "sac envpool": ("envpool:Pendulum-v1", {}, {}),
    "ppo lander": ("gym:LunarLander-v3", {}, {}),
    "ppo walker": ("gym:BipedalWalker-v3", {}, {}),
    "sac hopper": ("gym:Hopper-v5", {}, {}),
}


def algorithm(case: str) -> Any:
    """Return the algorithm of a case."""
    if case.startswith("sac"):
        return ludus.SAC(**SAC, network=ludus.MLP((16, 16), "relu"), normalize_observations="gym" in case)
    branches = {"advantages": "monte_carlo", "branches": 2, "branch_depth": 2} if "branches" in case else {}
    network = ludus.GRU(memory_size=8) if "gru" in case else SMALL
    return ludus.PPO(
        **PPO,
        **branches,
        network=network,
        anneal_learning_rate="annealed" in case,
        normalize_observations=True,
        normalize_rewards=True,
    )


def trainer(case: str, run_dir: Path | None, **more: Any) -> ludus.Trainer:
    """Return a trainer of a case."""
    name, env_options, options = CASES[case]
    env = ludus.make_env(name, num_envs=4, **env_options)
    settings = {"seed": 3, "eval_frequency": 3, "eval_episodes": 2, "checkpoint": OFTEN, "verbose": False}
    settings["record_behaviour"] = False
    made = ludus.Trainer(algorithm(case), env, ludus.Settings(**{**settings, **options, **more}), run_dir=run_dir)
    made.final_episodes = 0
    return made


def iterations(case: str, n: int) -> int:
    """Return the steps of n iterations."""
    return n * (32 if case.startswith("sac") else 64)


def run(case: str, folder: Path, n: int, **more: Any) -> None:
    """Train a case for n iterations."""
    made = trainer(case, folder, **more)
    with contextlib.closing(made.env):
        made.train(total_steps=iterations(case, n))


def resumed_elsewhere(folder: Path, copy: Path, step: int | str) -> Path:
    """Copy a run, resume it from a step in a fresh process, and return the copy."""
    shutil.copytree(folder, copy)
    code = f"from resume_runs import go_on; go_on({str(copy)!r}, {step!r})"
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return copy


__all__ = ["CASES", "OFTEN", "go_on", "iterations", "resumed_elsewhere", "run", "trainer"]
