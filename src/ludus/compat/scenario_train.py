"""A scenario trainer's `scripts/training/train.py`: its settings, run folders and metric keys, on `env=driving`.

    python -m ludus.compat.scenario_train total_timesteps=300000 path_dataset=roads algorithm=sac network/encoder=lq

is `ludus train env=driving ...` with the keys that `translated` returns; settings that are not given are as they are
there. All keys of `ludus train` may be given besides. Behind it is `ludus.Trainer`, as behind everything.
"""

import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ludus.runs.journal import read_journal
from ludus.training.config import build, compose
from ludus.training.train_result import TrainResult
from ludus.training.trainer import Trainer
from ludus.types import LudusError

DEFAULTS = {"total_timesteps": "20000000", "num_envs": "16", "save_freq": "200", "seed": "0"}
KEYS = {
    "total_timesteps": "total_steps",
    "num_envs": "num_envs",
    "seed": "seed",
    "log_freq": "log_frequency",
    "save_freq": "checkpoint.every_iterations",
    "eval_freq": "eval_frequency",
    "num_scenario_per_eval": "eval_episodes",
    "path_dataset": "env_options.scenarios",
    "scenario_length": "env_options.scenario_length",
    "termination_keys": "env_options.termination_keys",
}
"""Settings there, and the same here."""
REWARDS = {name: name for name in ("overlap", "offroad", "red_light", "off_route")} | {"progression": "progress"}
"""Terms of `reward_config` there, and of `env_options.reward` here."""
OFF_POLICY = {
    "learning_rate": ("learning_rate", "3e-4"),
    "discount": ("gamma", "0.99"),
    "tau": ("tau", "0.005"),
    "alpha": ("alpha", "0.2"),
    "batch_size": ("batch_size", "64"),
    "buffer_size": ("replay_size", "100000"),
    "unroll_length": ("unroll_length", "1"),
}
ON_POLICY = {
    "learning_rate": ("learning_rate", "3e-4"),
    "discount": ("gamma", "0.99"),
    "gae_lambda": ("gae_lambda", "0.95"),
    "eps_clip": ("clip_epsilon", "0.2"),
    "value_coef": ("value_coef", "0.5"),
    "entropy_coef": ("entropy_coef", "0.01"),
    "grad_updates_per_step": ("epochs_per_update", "4"),
}
ALGORITHMS = {
    "sac": OFF_POLICY,
    "bc_sac": OFF_POLICY,
    "ppo": ON_POLICY,
    "bc": {"learning_rate": ("learning_rate", "3e-4"), "batch_size": ("minibatch_size", "64")},
}
"""Settings of each algorithm there (`algorithm.NAME`), what they are here, and their values there."""
NOT_HERE = {
    "num_episode_per_epoch": "an episode begins where another ends, whatever iteration it is",
    "path_dataset_eval": "a set holds its evaluation scenarios; give it as path_dataset",
    "max_num_objects": "give env_options.num_cars, the cars around at most",
    "waymo_dataset": "scenarios are read in the format of ludus scenarios make",
    "sdc_paths_from_data": "scenarios are read in the format of ludus scenarios make",
}
FIXED = {"reward_type": "linear", "observation_type": "vec", "network": "base"}
"""Settings that have one value here."""
METRICS = {
    "runtime/sps": "steps_per_second",
    "runtime/iter_time": "seconds/iteration",
    "runtime/eval_time": "seconds/evaluation",
    "runtime/wall_time": "elapsed_seconds",
    "rollout/ep_rew_mean": "episode_return_mean",
    "rollout/ep_len_mean": "episode_length_mean",
    "evaluation/ep_rew_mean": "eval_return_mean",
    "evaluation/ep_len_mean": "eval_length_mean",
    "train/policy_loss": "policy_loss",
    "train/value_loss": "critic_loss",
}
"""Keys there, and the figures of the journal."""
DRIVING = {
    "accuracy": "accuracy",
    "overlap": "collision",
    "at_fault_collision": "at_fault_collision",
    "offroad": "offroad",
    "off_route": "off_route",
    "run_red_light": "red_light",
    "wrongway": "wrong_way",
    "progression": "progress",
    "progress_ratio_nuplan": "progress_ratio",
    "ttc": "time_to_collision",
    "comfort": "comfort",
    "speed_limit": "speed_compliance",
    "on_multiple_lanes": "astride",
    "driving_direction_compliance": "direction",
    "log_divergence": "log_divergence",
    "nuplan_aggregate_score": "nuplan_score",
    "vmax_aggregate_score": "vmax_score",
}
"""Names of what an episode came to there, `metrics/NAME`, and here, `info/NAME/last`."""


def train(words: Sequence[str]) -> TrainResult:
    """Train as these settings say."""
    config = compose(translated(words))
    parts = build(config)
    with contextlib.closing(parts.env):
        return Trainer(parts.algorithm, parts.env, parts.settings, run_dir=config.run_dir).train(**parts.budget)


def translated(words: Sequence[str]) -> list[str]:
    """Return the words of `ludus train` that mean the same."""
    given = dict(DEFAULTS)
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise LudusError(f"{word}: expected key=value, such as total_timesteps=1000000")
        given[key] = value
    algorithm = given.setdefault("algorithm", "sac")
    if algorithm not in ALGORITHMS:
        raise LudusError(f"algorithm={algorithm}: must be one of {', '.join(ALGORITHMS)}")
    given.setdefault("env", "driving")
    given.setdefault("preset", "null")
    given.setdefault("run_dir", _folder(algorithm, given.get("network/encoder", "none")))
    ours = _rhythm(algorithm, given)
    for name, (key, value) in ALGORITHMS[algorithm].items():
        ours[f"algorithm.{key}"] = given.pop(f"algorithm.{name}", value)
    for key, value in given.items():
        if key in NOT_HERE:
            raise LudusError(f"{key}={value}: leave it out; {NOT_HERE[key]}")
        if key in FIXED and value != FIXED[key]:
            raise LudusError(f"{key}={value}: must be {FIXED[key]}, or left out")
        term = key.removeprefix("reward_config.")
        if term != key and term not in REWARDS:
            raise LudusError(f"{key}: must be one of {', '.join(f'reward_config.{name}' for name in REWARDS)}")
        if key not in FIXED:
            ours[f"env_options.reward.{REWARDS[term]}" if term != key else KEYS.get(key, key)] = value
    return [f"{key}={value}" for key, value in ours.items()]


def _folder(algorithm: str, encoder: str) -> str:
    """Return the name of a run folder as it is there."""
    parts = [algorithm.upper(), "VEC", *([] if encoder == "none" else [encoder.upper()])]
    return f"runs/{'_'.join(parts)}_{time.strftime('%d-%m_%H:%M:%S')}"


def _rhythm(algorithm: str, given: dict[str, str]) -> dict[str, str]:
    """Return how much is gathered and how often is learnt: there by iterations, here by environment steps."""
    num_envs = _count(given, "num_envs", 16)
    if algorithm in ("sac", "bc_sac"):
        per_iteration = num_envs * _count(given, "algorithm.unroll_length", 1)
        updates = _count(given, "algorithm.grad_updates_per_step", 4, is_taken=True)
        starts = _count(given, "algorithm.learning_start", 100, is_taken=True) * num_envs
        return {
            "algorithm.updates_per_step": repr(updates / per_iteration),
            "algorithm.learning_starts": str(starts),
            "algorithm.automatic_alpha": "false",
        }
    if algorithm == "ppo":
        if "algorithm.batch_size" in given:
            raise LudusError(
                "algorithm.batch_size: leave it out; a rollout is num_envs x algorithm.unroll_length steps"
            )
        steps = num_envs * _count(given, "algorithm.unroll_length", 40, is_taken=True)
        parts = _count(given, "algorithm.num_minibatches", 4, is_taken=True)
        return {
            "algorithm.batch_size": str(steps),
            "algorithm.minibatch_size": str(max(1, steps // parts)),
            "algorithm.network.hidden_sizes": "[256,256]",
        }
    return {}


def _count(given: dict[str, str], key: str, default: int, is_taken: bool = False) -> int:
    """Read a number of at least 1; one that is taken has no key of the same meaning."""
    value = given.pop(key, str(default)) if is_taken else given.get(key, str(default))
    if not value.isdecimal() or int(value) < 1:
        raise LudusError(f"{key}={value}: must be an integer of at least 1")
    return int(value)


def scalars(run: str | Path) -> dict[str, list[tuple[int, float]]]:
    """Return the curves of a run by the keys that they have there: pairs of environment steps and value."""
    names = METRICS | {f"metrics/{there}": f"info/{here}/last" for there, here in DRIVING.items()}
    rows = read_journal(Path(run))
    curves = {
        key: [(row["steps"], float(row[name])) for row in rows if row.get(name) is not None]
        for key, name in names.items()
    }
    return {key: curve for key, curve in curves.items() if curve}


if __name__ == "__main__":
    try:
        print(train(sys.argv[1:]))
    except LudusError as error:
        print(f"ludus: {error}", file=sys.stderr)
        sys.exit(2)
