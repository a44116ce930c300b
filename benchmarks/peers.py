"""Train one peer library on CartPole-v1 in this process and print its timings as one JSON line.

Run it with the interpreter of the peers' own environment (see requirements-peers.txt), one peer per process:

    PEERS_PYTHON benchmarks/peers.py rejax --steps 500000 --seed 0
    PEERS_PYTHON benchmarks/peers.py rejax --steady 64 32
    PEERS_PYTHON benchmarks/peers.py sb3 --seed 0
    PEERS_PYTHON benchmarks/peers.py sbx --seed 0

What the keys mean (all times in seconds, none of them rounded):

    import_seconds      importing the peer and what it needs
    setup_seconds       building environments, networks and the algorithm object
    trace_seconds       tracing and lowering the program (Rejax)
    compile_seconds     compiling it (Rejax)
    warmup_seconds      first rollout and update beyond a usual one; compilation for SBX (SB3, SBX)
    run_seconds         training; for Rejax the final evaluation too, which is part of its one program
    eval_seconds        the evaluation where it is a separate call (SB3, SBX)
    total_seconds       from the first line of this file to the result, evaluation included
    mean_return         mean over 100 fresh episodes; "evaluation" says whether actions were greedy or sampled
    steps_per_second    steady training speed, without import and compilation
"""

import time

START = time.perf_counter()  # before every other import: total_seconds counts from here

import argparse  # noqa: E402
import contextlib  # noqa: E402
import importlib  # noqa: E402
import importlib.metadata  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import statistics  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

EVALUATION_EPISODES = 100
STEADY_REPEATS = 3
MINIMUM_STEPS = 1_000

# The `ppo` entry of configs/gymnax/cartpole.yaml in Rejax 0.1.3's source distribution, apart from two things:
# the number of steps comes from the command line (there 100,000), and there is one evaluation, at the end, in place
# of one every 1,000 steps, whose episodes would hold many times the environment steps of the training itself.
# Return of sampled actions after 500,000 steps, seeds 0 to 4: 500 each (rounded); not yet dependable at 100,000.
REJAX_CARTPOLE = {
    "env": "CartPole-v1",
    "agent_kwargs": {"activation": "tanh", "hidden_layer_sizes": (64, 64)},
    "num_envs": 5,
    "num_steps": 100,
    "num_epochs": 5,
    "num_minibatches": 5,
    "learning_rate": 7.5e-4,
    "max_grad_norm": 0.5,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_eps": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
}

# The shape of work on which throughput is compared; the remaining settings do not change the work done.
REJAX_STEADY = {**REJAX_CARTPOLE, "num_epochs": 4, "num_minibatches": 4}

# The `CartPole-v1` entry of RL Baselines3 Zoo's hyperparams/ppo.yml; the learning rate and the clip range fall
# linearly to zero over the run.
ZOO_ENVS = 8
ZOO_CARTPOLE = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gae_lambda": 0.8, "gamma": 0.98, "ent_coef": 0.0}
ZOO_LEARNING_RATE = 1e-3
ZOO_CLIP_RANGE = 0.2

DEFAULT_STEPS = {"rejax": 500_000, "sb3": 100_000, "sbx": 100_000}
DISTRIBUTIONS = {
    "rejax": ("rejax", "gymnax", "jax", "flax", "numpy"),
    "sb3": ("stable-baselines3", "torch", "gymnasium", "numpy"),
    "sbx": ("sbx-rl", "stable-baselines3", "torch", "jax", "flax", "gymnasium", "numpy"),
}


class Stopwatch:
    """Collects the seconds between consecutive laps."""

    def __init__(self) -> None:
        """Start the first lap now."""
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Store the seconds since the previous lap as `<name>_seconds`."""
        now = time.perf_counter()
        self.seconds[f"{name}_seconds"] = now - self._last
        self._last = now


def forbid_compilation_cache() -> None:
    """Make sure that JAX neither reads nor writes compiled programs on disk. Call it before importing JAX."""
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"


def make_rejax(settings: dict[str, Any], steps: int, eval_callback: Any) -> Any:
    """Build Rejax' PPO so that it trains for `steps` and then calls `eval_callback` once.

    Args:
        settings: keyword arguments of `rejax.PPO.create`.
        steps: environment steps, rounded up to whole iterations by Rejax.
        eval_callback: function of (algorithm, train state, key); its result becomes the second output of `train`.
    """
    import rejax

    algorithm = rejax.PPO.create(**settings, total_timesteps=steps, eval_freq=steps, skip_initial_evaluation=True)
    return algorithm.replace(eval_callback=eval_callback)


def evaluate_rejax(algorithm: Any, train_state: Any, key: Any) -> Any:
    """Return the mean return of fresh episodes; Rejax' PPO offers sampled actions only."""
    import jax
    from rejax.evaluate import evaluate

    key = jax.random.fold_in(key, EVALUATION_EPISODES)  # Rejax hands over the training key itself
    act = algorithm.make_act(train_state)
    limit = algorithm.env_params.max_steps_in_episode
    _, returns = evaluate(act, key, algorithm.env, algorithm.env_params, EVALUATION_EPISODES, limit)
    return returns.mean()


def skip_evaluation(algorithm: Any, train_state: Any, key: Any) -> tuple[()]:
    """Evaluate nothing, for runs which measure speed only."""
    del algorithm, train_state, key
    return ()


def compile_rejax(algorithm: Any, seed: int, stopwatch: Stopwatch) -> Any:
    """Compile the whole training run ahead of time, with laps for tracing and compiling."""
    import jax

    lowered = jax.jit(algorithm.train).lower(jax.random.PRNGKey(seed))
    stopwatch.lap("trace")
    compiled = lowered.compile()
    stopwatch.lap("compile")
    return compiled


def import_rejax(stopwatch: Stopwatch) -> None:
    """Import everything the Rejax runs need."""
    forbid_compilation_cache()
    for module in ("jax", "rejax", "rejax.evaluate"):
        importlib.import_module(module)
    stopwatch.lap("import")


def run_rejax(steps: int, seed: int) -> dict[str, Any]:
    """Train Rejax' PPO once from cold and evaluate it."""
    stopwatch = Stopwatch()
    import_rejax(stopwatch)
    import jax

    algorithm = make_rejax(REJAX_CARTPOLE, steps, evaluate_rejax)
    stopwatch.lap("setup")
    train = compile_rejax(algorithm, seed, stopwatch)
    train_state, mean_returns = jax.block_until_ready(train(jax.random.PRNGKey(seed)))
    stopwatch.lap("run")
    total_seconds = time.perf_counter() - START
    done = int(train_state.global_step)
    return stopwatch.seconds | {
        "total_seconds": total_seconds,
        "steps": done,
        "mean_return": float(mean_returns[-1]),
        "evaluation": "sampled",
        "steps_per_second": done / stopwatch.seconds["run_seconds"],
    }


def run_rejax_steady(steps: int, seed: int, num_envs: int, num_steps: int) -> dict[str, Any]:
    """Time compiled training runs of Rejax' PPO: one to warm up, then the median of three."""
    stopwatch = Stopwatch()
    import_rejax(stopwatch)
    import jax

    settings = {**REJAX_STEADY, "num_envs": num_envs, "num_steps": num_steps}
    algorithm = make_rejax(settings, steps, skip_evaluation)
    stopwatch.lap("setup")
    train = compile_rejax(algorithm, seed, stopwatch)
    key = jax.random.PRNGKey(seed)
    train_state, _ = jax.block_until_ready(train(key))
    run_seconds = statistics.median(time_call(train, key) for _ in range(STEADY_REPEATS))
    done = int(train_state.global_step)
    return stopwatch.seconds | {
        "run_seconds": run_seconds,
        "total_seconds": time.perf_counter() - START,
        "steps": done,
        "num_envs": num_envs,
        "num_steps": num_steps,
        "mean_return": None,
        "steps_per_second": done / run_seconds,
    }


def time_call(function: Any, *arguments: Any) -> float:
    """Return the seconds one call of a compiled JAX function takes."""
    import jax

    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start


def limit_torch_threads() -> None:
    """Let PyTorch use one thread: as fast as two for such small networks, and far steadier on a busy machine."""
    import torch

    torch.set_num_threads(1)


def make_cycle_clock() -> Any:
    """Make a Stable-Baselines3 callback whose `starts` lists when each cycle of rollout and update began."""
    from stable_baselines3.common.callbacks import BaseCallback

    class CycleClock(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.starts: list[float] = []

        def _on_rollout_start(self) -> None:
            self.starts.append(time.perf_counter())

        def _on_step(self) -> bool:
            return True

    return CycleClock()


def make_baseline(package: str, seed: int) -> Any:
    """Build PPO of Stable-Baselines3 or SBX with the Zoo's settings; both take the same arguments."""
    from stable_baselines3.common.env_util import make_vec_env

    return importlib.import_module(package).PPO(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=ZOO_ENVS, seed=seed),
        learning_rate=lambda remaining: remaining * ZOO_LEARNING_RATE,
        clip_range=lambda remaining: remaining * ZOO_CLIP_RANGE,
        seed=seed,
        device="cpu",
        **ZOO_CARTPOLE,
    )


def evaluate_baseline(model: Any, seed: int) -> float:
    """Return the mean return of fresh episodes with greedy actions, one episode per environment."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    environments = make_vec_env("CartPole-v1", n_envs=EVALUATION_EPISODES, seed=seed + 1_000_000)
    mean_return, _ = evaluate_policy(model, environments, EVALUATION_EPISODES, deterministic=True)
    return float(mean_return)


def run_baseline(package: str, steps: int, seed: int) -> dict[str, Any]:
    """Train PPO of Stable-Baselines3 or SBX once from cold and evaluate it."""
    stopwatch = Stopwatch()
    forbid_compilation_cache()
    importlib.import_module(package)
    stopwatch.lap("import")
    limit_torch_threads()
    model = make_baseline(package, seed)
    stopwatch.lap("setup")
    clock = make_cycle_clock()
    model.learn(steps, callback=clock)
    stopwatch.lap("run")
    mean_return = evaluate_baseline(model, seed)
    stopwatch.lap("eval")
    total_seconds = time.perf_counter() - START
    cycles = [after - before for before, after in zip(clock.starts, clock.starts[1:], strict=False)]
    usual = statistics.median(cycles[1:])
    return stopwatch.seconds | {
        "warmup_seconds": cycles[0] - usual,
        "total_seconds": total_seconds,
        "steps": model.num_timesteps,
        "mean_return": mean_return,
        "evaluation": "greedy",
        "steps_per_second": ZOO_ENVS * ZOO_CARTPOLE["n_steps"] / usual,
    }


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Time one peer of ludus on CartPole-v1.")
    peers = parser.add_subparsers(dest="peer", required=True)
    for peer, steps in DEFAULT_STEPS.items():
        command = peers.add_parser(peer)
        command.add_argument("--steps", type=int, default=steps, help="environment steps of one training run")
        command.add_argument("--seed", type=int, default=0)
        if peer == "rejax":
            sizes = ("NUM_ENVS", "NUM_STEPS")
            command.add_argument("--steady", type=int, nargs=2, metavar=sizes, help="measure throughput only")
    arguments = parser.parse_args()
    if arguments.steps < MINIMUM_STEPS:
        parser.error(f"--steps is {arguments.steps}, but timing a steady state needs at least {MINIMUM_STEPS}")
    return arguments


def run_peer(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run what the command line asks for."""
    if arguments.peer == "rejax" and arguments.steady:
        return run_rejax_steady(arguments.steps, arguments.seed, *arguments.steady)
    if arguments.peer == "rejax":
        return run_rejax(arguments.steps, arguments.seed)
    package = {"sb3": "stable_baselines3", "sbx": "sbx"}[arguments.peer]
    return run_baseline(package, arguments.steps, arguments.seed)


def main() -> None:
    """Run one peer and print its result."""
    arguments = parse_arguments()
    with contextlib.redirect_stdout(sys.stderr):  # whatever the libraries say, stdout holds one line
        result = run_peer(arguments)
    versions = {name: importlib.metadata.version(name) for name in DISTRIBUTIONS[arguments.peer]}
    version = versions[DISTRIBUTIONS[arguments.peer][0]]
    header = {"peer": arguments.peer, "version": version, "versions": versions, "seed": arguments.seed}
    print(json.dumps(header | result))


if __name__ == "__main__":
    main()
