"""Train one peer library in this process and print its timings as one JSON line.

Run it with the interpreter of the peers' own environment (see requirements-peers.txt), one peer per process:

    PEERS_PYTHON benchmarks/peers.py rejax --steps 500000 --seed 0
    PEERS_PYTHON benchmarks/peers.py rejax --steady 64 32
    PEERS_PYTHON benchmarks/peers.py sb3 --seed 0
    PEERS_PYTHON benchmarks/peers.py sbx --seed 0
    PEERS_PYTHON benchmarks/peers.py sb3 --task sac --threads 2
    PEERS_PYTHON benchmarks/peers.py sbx --task sac --unroll 32
    PEERS_PYTHON benchmarks/peers.py sbx --task bipedal --steps 131072
    PEERS_PYTHON benchmarks/peers.py sb3 --task pixels --threads 2
    PEERS_PYTHON benchmarks/peers.py sb3 --task act

The task is CartPole-v1 unless `--task` says otherwise: SAC on Pendulum-v1, PPO on BipedalWalker-v3 or on pictures
(frames.py, Stable-Baselines3 only), or the choice of actions alone.

What the keys mean (all times in seconds, none of them rounded):

    import_seconds      importing the peer and what it needs
    setup_seconds       building environments, networks and the algorithm object
    trace_seconds       tracing and lowering the program (Rejax)
    compile_seconds     compiling it (Rejax)
    warmup_seconds      first rollout and update beyond a usual one; compilation for SBX (SB3, SBX)
    run_seconds         training; for Rejax the final evaluation too, which is part of its one program
    trained_seconds     from the first line of this file to the end of training, no evaluation included (SB3, SBX)
    eval_seconds        the evaluation where it is a separate call (SB3, SBX)
    total_seconds       from the first line of this file to the result, evaluation included
    mean_return         mean over 100 fresh episodes; "evaluation" says whether actions were greedy or sampled
    steps_per_second    steady training speed, without import and compilation
    timed_steps         the steps it was measured over, after the warm-up (tasks sac, bipedal and pixels)
    cpu_seconds         what all threads of the process worked meanwhile, which other programs disturb least
    microseconds        median time of one call that chooses actions, up to their arrival in NumPy (task act)
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

# The `BipedalWalker-v3` entry of the same file; its `normalize: true` is VecNormalize.
ZOO_BIPEDAL_ENVS = 32
ZOO_BIPEDAL = {
    "n_steps": 2048,
    "batch_size": 64,
    "n_epochs": 10,
    "gae_lambda": 0.95,
    "gamma": 0.999,
    "ent_coef": 0.0,
    "learning_rate": 3e-4,
    "clip_range": 0.18,
}

# The `atari` entry of the same file; there the learning rate and the clip range fall linearly to zero over the run.
ZOO_ATARI_ENVS = 8
ZOO_ATARI = {
    "n_steps": 128,
    "batch_size": 256,
    "n_epochs": 4,
    "learning_rate": 2.5e-4,
    "clip_range": 0.1,
    "ent_coef": 0.01,
}

# The peers' defaults for SAC, which both have in common: two layers of 256 with ReLU, a learnt temperature.
SAC = {"batch_size": 256, "buffer_size": 20_000, "learning_starts": 100}
SAC_WARMUP = 1_000
ACT_WARMUP = 100

REJAX_STEPS = 500_000
TASK_STEPS = {
    "cartpole": 100_000,
    "sac": 3_000,
    "bipedal": 2 * ZOO_BIPEDAL_ENVS * 2048,
    "pixels": 3 * ZOO_ATARI_ENVS * 128,
    "act": 5_000,
}
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


def limit_torch_threads(threads: int = 1) -> None:
    """Let PyTorch use one thread: as fast as two for networks of 64, and far steadier on a busy machine."""
    import torch

    torch.set_num_threads(threads)


def make_cycle_clock() -> Any:
    """Make a Stable-Baselines3 callback that lists when each cycle of rollout and update began, and at which step."""
    from stable_baselines3.common.callbacks import BaseCallback

    class CycleClock(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.starts: list[float] = []
            self.cpu: list[float] = []
            self.steps: list[int] = []

        def _on_rollout_start(self) -> None:
            self.starts.append(time.perf_counter())
            self.cpu.append(time.process_time())
            self.steps.append(self.model.num_timesteps)

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


def make_bipedal(package: str, seed: int) -> Any:
    """Build PPO for BipedalWalker as the Zoo does: environments in this process, observations and rewards scaled."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    environments = make_vec_env("BipedalWalker-v3", n_envs=ZOO_BIPEDAL_ENVS, seed=seed)
    environments = VecNormalize(environments, gamma=ZOO_BIPEDAL["gamma"])
    return importlib.import_module(package).PPO("MlpPolicy", environments, seed=seed, device="cpu", **ZOO_BIPEDAL)


def make_pixels(package: str, seed: int) -> Any:
    """Build PPO with convolutions, as the Zoo does for Atari, for pictures that cost nothing to make."""
    from stable_baselines3.common.env_util import make_vec_env

    from frames import Frames

    environments = make_vec_env(Frames, n_envs=ZOO_ATARI_ENVS, seed=seed)
    return importlib.import_module(package).PPO("CnnPolicy", environments, seed=seed, device="cpu", **ZOO_ATARI)


def make_sac(package: str, seed: int, unroll: int) -> Any:
    """Build SAC for Pendulum, with `unroll` environment steps and as many gradient steps by turns."""
    from stable_baselines3.common.env_util import make_vec_env

    environments = make_vec_env("Pendulum-v1", n_envs=1, seed=seed)
    settings = {**SAC, "train_freq": unroll, "gradient_steps": unroll}
    return importlib.import_module(package).SAC("MlpPolicy", environments, seed=seed, device="cpu", **settings)


def time_steady(model: Any, warmup: int, steps: int) -> dict[str, Any]:
    """Train for `warmup` steps and then `steps` more, and return the speed of the latter."""
    clock = make_cycle_clock()
    model.learn(warmup + steps, callback=clock)
    end, cpu = time.perf_counter(), time.process_time()
    first = next(cycle for cycle, done in enumerate(clock.steps) if done >= warmup)
    run_seconds, timed_steps = end - clock.starts[first], model.num_timesteps - clock.steps[first]
    return {
        "run_seconds": run_seconds,
        "cpu_seconds": cpu - clock.cpu[first],
        "timed_steps": timed_steps,
        "steps_per_second": timed_steps / run_seconds,
        "steps_per_cpu_second": timed_steps / (cpu - clock.cpu[first]),
    }


def time_act(package: str, model: Any, calls: int) -> dict[str, Any]:
    """Time how the rollout chooses actions for 8 environments; the lines are those of the peer's collect_rollouts."""
    import numpy as np
    import torch
    from stable_baselines3.common.utils import obs_as_tensor

    obs, policy = model.env.reset(), model.policy

    def act_torch() -> Any:
        with torch.no_grad():
            actions, values, log_probs = policy(obs_as_tensor(obs, model.device))
        return actions.cpu().numpy(), values, log_probs

    def act_jax() -> Any:
        policy.reset_noise()
        answers = policy.predict_all(policy.prepare_obs(obs)[0], policy.noise_key)
        return [np.array(answer) for answer in answers]

    if package == "stable_baselines3":
        policy.set_training_mode(False)
    act = act_torch if package == "stable_baselines3" else act_jax
    seconds = []
    for _ in range(ACT_WARMUP + calls):
        started = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - started)
    return {"calls": calls, "microseconds": 1e6 * statistics.median(seconds[ACT_WARMUP:])}


def run_baseline_steady(package: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one of the tasks that measure a steady state and evaluate nothing."""
    stopwatch = Stopwatch()
    forbid_compilation_cache()
    importlib.import_module(package)
    stopwatch.lap("import")
    limit_torch_threads(arguments.threads)
    if arguments.task == "sac":
        figures = time_steady(make_sac(package, arguments.seed, arguments.unroll), SAC_WARMUP, arguments.steps)
    elif arguments.task == "bipedal":
        warmup = ZOO_BIPEDAL_ENVS * ZOO_BIPEDAL["n_steps"]
        figures = time_steady(make_bipedal(package, arguments.seed), warmup, arguments.steps)
    elif arguments.task == "pixels":
        warmup = ZOO_ATARI_ENVS * ZOO_ATARI["n_steps"]
        figures = time_steady(make_pixels(package, arguments.seed), warmup, arguments.steps)
    else:
        figures = time_act(package, make_baseline(package, arguments.seed), arguments.steps)
    return stopwatch.seconds | figures | {"threads": arguments.threads}


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
    trained_seconds = time.perf_counter() - START
    mean_return = evaluate_baseline(model, seed)
    stopwatch.lap("eval")
    total_seconds = time.perf_counter() - START
    cycles = [after - before for before, after in zip(clock.starts, clock.starts[1:], strict=False)]
    usual = statistics.median(cycles[1:])
    return stopwatch.seconds | {
        "warmup_seconds": cycles[0] - usual,
        "trained_seconds": trained_seconds,
        "total_seconds": total_seconds,
        "steps": model.num_timesteps,
        "mean_return": mean_return,
        "evaluation": "greedy",
        "steps_per_second": ZOO_ENVS * ZOO_CARTPOLE["n_steps"] / usual,
    }


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Time one peer of ludus.")
    peers = parser.add_subparsers(dest="peer", required=True)
    for peer in DISTRIBUTIONS:
        command = peers.add_parser(peer)
        command.add_argument("--steps", type=int, help="environment steps that are timed (calls, for act)")
        command.add_argument("--seed", type=int, default=0)
        if peer == "rejax":
            sizes = ("NUM_ENVS", "NUM_STEPS")
            command.add_argument("--steady", type=int, nargs=2, metavar=sizes, help="measure throughput only")
        else:
            command.add_argument("--task", choices=TASK_STEPS, default="cartpole")
            command.add_argument("--threads", type=int, default=1, help="PyTorch's, in all tasks but cartpole")
            command.add_argument("--unroll", type=int, default=1, help="steps between the updates of SAC, and theirs")
    arguments = parser.parse_args()
    if arguments.steps is None:
        arguments.steps = REJAX_STEPS if arguments.peer == "rejax" else TASK_STEPS[arguments.task]
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
    if arguments.task != "cartpole":
        return run_baseline_steady(package, arguments)
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
