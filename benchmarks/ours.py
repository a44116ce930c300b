"""Train ludus in this process and print its timings as one JSON line: the twin of peers.py, for speed.py.

    .venv/bin/python benchmarks/ours.py steady 64 32
    .venv/bin/python benchmarks/ours.py gymnasium
    .venv/bin/python benchmarks/ours.py sac gym:Pendulum-v1
    .venv/bin/python benchmarks/ours.py bipedal envpool:BipedalWalker-v3 --steps 131072
    .venv/bin/python benchmarks/ours.py pixels
    .venv/bin/python benchmarks/ours.py act

What the keys mean (none of them rounded):

    trained_seconds     from the first line of this file to the end of training: imports, compilation, no evaluation
    steps_per_second    steady speed, by the run's own journal: from the end of the first chunk that reaches the
                        warm-up's steps to the end of the last one. Rollouts, updates, counting, and writing the
                        journal are in it; compilation and the final evaluation are not
    timed_steps         the steps between the two
    steps_per_cpu_second  the same by what all threads of the process worked, which other programs disturb least
    microseconds        median time of one call that chooses actions, up to their arrival in an array of NumPy's
    mean_return         mean over 100 fresh greedy episodes
"""

import time

START = time.perf_counter()  # before every other import: trained_seconds counts from here

import argparse  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import ludus  # noqa: E402

STEADY_REPEATS = 3  # peers.py warms up with one training run and times three; here that is one run, four times as long
ACT_ROLLOUT = 128

# The `CartPole-v1` entry of RL Baselines3 Zoo's hyperparams/ppo.yml; there the clip range falls to zero as well.
ZOO_CARTPOLE = {
    "batch_size": 256,
    "minibatch_size": 256,
    "epochs_per_update": 20,
    "learning_rate": 1e-3,
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "entropy_coef": 0.0,
}

# The `BipedalWalker-v3` entry of the same file: 2,048 steps in each of 32 environments.
ZOO_BIPEDAL = {
    "batch_size": 65_536,
    "minibatch_size": 64,
    "epochs_per_update": 10,
    "learning_rate": 3e-4,
    "anneal_learning_rate": False,
    "gamma": 0.999,
    "gae_lambda": 0.95,
    "clip_epsilon": 0.18,
    "entropy_coef": 0.0,
    "normalize_observations": True,
    "normalize_rewards": True,
}

# The `atari` entry of the same file: 128 steps in each of 8 environments, and the network of Mnih et al. alone.
ZOO_ATARI = {
    "batch_size": 1024,
    "minibatch_size": 256,
    "epochs_per_update": 4,
    "learning_rate": 2.5e-4,
    "anneal_learning_rate": False,
    "clip_epsilon": 0.1,
    "entropy_coef": 0.01,
    "network": ludus.MLP(hidden_sizes=()),
}

# Two layers of 256 and one gradient step for each environment step are the defaults; steps and gradient steps take
# turns 32 at a time.
SAC = {"learning_starts": 100, "batch_size": 256, "replay_size": 20_000, "unroll_length": 32, "updates_per_step": 1.0}
SAC_WARMUP = 1_000


def steady_speed(algorithm: Any, env: Any, warmup: int, steps: int, seed: int) -> dict[str, Any]:
    """Train for `warmup` steps and then `steps` more, in one call, and return the speed of the latter."""
    from ludus.runs.journal import read_journal

    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        settings = ludus.Settings(seed=seed, eval_frequency=0, eval_episodes_final=1, verbose=False)
        trainer = ludus.Trainer(algorithm, env, settings, run_dir=run)
        # One budget for both, since the first one settles how the program is compiled.
        trainer.train(total_steps=warmup + steps)
        rows = [row for row in read_journal(run) if row["kind"] == "train"]
    chunks = {row["elapsed_seconds"]: row["steps"] for row in rows}  # all rows of a chunk have the time of its end
    marks = [(seconds, done) for seconds, done in chunks.items() if done >= warmup]
    if len(marks) < 2:
        raise ludus.LudusError(f"--steps is {steps}: too few to time, they were over within one chunk")
    (start, before), (end, after) = marks[0], marks[-1]
    return {"timed_steps": after - before, "steps_per_second": (after - before) / (end - start)}


def run_steady(given: argparse.Namespace) -> dict[str, Any]:
    """Time native CartPole with 4 epochs of 4 minibatches."""
    batch = given.num_envs * given.num_steps
    ppo = ludus.PPO(batch_size=batch, minibatch_size=batch // 4, epochs_per_update=4)
    env = ludus.make_env("jax:CartPole-v1", num_envs=given.num_envs)
    return steady_speed(ppo, env, given.steps, STEADY_REPEATS * given.steps, given.seed)


def run_gymnasium(given: argparse.Namespace) -> dict[str, Any]:
    """Train CartPole through Gymnasium once, from cold, and evaluate it."""
    env = ludus.make_env("gym:CartPole-v1", num_envs=8)
    settings = ludus.Settings(seed=given.seed, eval_frequency=0, eval_episodes_final=0, verbose=False)
    trainer = ludus.Trainer(ludus.PPO(**ZOO_CARTPOLE), env, settings)
    result = trainer.train(total_steps=given.steps)
    trained_seconds = time.perf_counter() - START
    mean_return = float(trainer.evaluate(100).returns.mean())
    return {"trained_seconds": trained_seconds, "steps": result.steps, "mean_return": mean_return}


def run_sac(given: argparse.Namespace) -> dict[str, Any]:
    """Time SAC in one environment."""
    env = ludus.make_env(given.env, num_envs=1)
    return steady_speed(ludus.SAC(**SAC), env, SAC_WARMUP, given.steps, given.seed)


def run_bipedal(given: argparse.Namespace) -> dict[str, Any]:
    """Time PPO in 32 environments, after one iteration to warm up."""
    workers = {} if given.num_workers is None else {"num_workers": given.num_workers}
    env = ludus.make_env(given.env, num_envs=32, **workers)
    ppo = ludus.PPO(**ZOO_BIPEDAL)
    placement = getattr(env, "placement", "")
    return {"placement": placement, **steady_speed(ppo, env, ppo.batch_size, given.steps, given.seed)}


def run_pixels(given: argparse.Namespace) -> dict[str, Any]:
    """Time PPO on pictures of 84 x 84 x 4 in 8 environments, after one iteration to warm up."""
    from frames import Frames

    marks = []
    settings = ludus.Settings(seed=given.seed, eval_frequency=0, eval_episodes_final=0, verbose=False)
    trainer = ludus.Trainer(ludus.PPO(**ZOO_ATARI), ludus.make_env(Frames, num_envs=8), settings)

    def note(metrics: dict[str, Any]) -> None:
        marks.append((time.perf_counter(), time.process_time()))

    trainer.train(total_steps=ZOO_ATARI["batch_size"] + given.steps, callback=note)
    (start, worked_before), (end, worked) = marks[0], marks[-1]
    steps = (len(marks) - 1) * ZOO_ATARI["batch_size"]
    return {
        "timed_steps": steps,
        "cpu_seconds": worked - worked_before,
        "steps_per_second": steps / (end - start),
        "steps_per_cpu_second": steps / (worked - worked_before),
    }


def run_act(given: argparse.Namespace) -> dict[str, Any]:
    """Time how the host's rollout chooses actions for 8 environments, without the environments."""
    import jax
    import numpy as np

    from ludus.rollout import acting

    env = ludus.make_env("gym:CartPole-v1", num_envs=8)
    policy = ludus.Trainer(ludus.PPO(), env, ludus.Settings(seed=given.seed, verbose=False)).policy
    algorithm, state, obs = policy.algorithm, policy.state, env.reset(range(8))
    memory, ended = algorithm.initial_memory(state, 8), np.zeros(8, bool)
    noise = acting.draw_noise(algorithm, state, jax.random.key(given.seed), (ACT_ROLLOUT, 8))
    rows = np.empty(
        (ACT_ROLLOUT, 8, acting.layout_of(algorithm, state, memory, obs, noise, "explore").width), np.float32
    )
    seconds = []
    for call in range(ACT_ROLLOUT + given.steps):
        t = call % ACT_ROLLOUT
        started = time.perf_counter()
        memory, packed = acting.act(algorithm, state, memory, obs, ended, noise, np.int32(t), "explore")
        rows[t] = packed
        seconds.append(time.perf_counter() - started)
    return {"calls": given.steps, "microseconds": 1e6 * statistics.median(seconds[ACT_ROLLOUT:])}


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    runs = {
        "steady": (run_steady, 500_000),
        "gymnasium": (run_gymnasium, 100_000),
        "sac": (run_sac, 3_000),
        "bipedal": (run_bipedal, 2 * ZOO_BIPEDAL["batch_size"]),
        "pixels": (run_pixels, 3 * ZOO_ATARI["batch_size"]),
        "act": (run_act, 5_000),
    }
    for name, (run, steps) in runs.items():
        task = tasks.add_parser(name, help=run.__doc__)
        task.set_defaults(run=run)
        task.add_argument("--steps", type=int, default=steps, help="environment steps (calls, for act)")
        task.add_argument("--seed", type=int, default=0)
        if name == "steady":
            task.add_argument("num_envs", type=int)
            task.add_argument("num_steps", type=int)
        if name in ("sac", "bipedal"):
            task.add_argument("env")
        if name == "bipedal":
            task.add_argument("--num-workers", type=lambda text: int(text) if text.isdigit() else text)
    return parser.parse_args()


def main() -> None:
    """Run one task and print its result."""
    given = parse_arguments()
    try:
        result = given.run(given)
    except ludus.LudusError as error:
        sys.exit(str(error))
    print(json.dumps({"version": ludus.__version__, "seed": given.seed, **result}))


if __name__ == "__main__":
    main()
