"""Driving: how fast the simulator and training on it are, and what the drivers by rule reach. Prints JSON.

    python benchmarks/driving.py speed [--envs 1 16 256 4096] [--seconds 5] [--train ppo sac] [--scenarios FOLDER]
    python benchmarks/driving.py drivers [--episodes 1000] [--variant none noisy adversarial]

`speed` counts steps of one car in one scenario: `simulator` steps with actions by chance, observations made and ended
episodes started anew, in scenarios that are generated meanwhile or, far faster, in those of a stored set; `train` is
the whole of an algorithm's iteration. Needs jax, flax, optax and numpy; a stored set needs safetensors besides.
"""

import argparse
import json
import platform
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ludus
from ludus.algorithms.idle import idle_policy
from ludus.envs.batch import Draw
from ludus.envs.scenarios.driving.drivers import DRIVERS
from ludus.envs.scenarios.driving.environment import Driving
from ludus.envs.scenarios.driving.roads import lights
from ludus.envs.scenarios.held_out import Generated
from ludus.envs.scenarios.shards import digests_of
from ludus.envs.scenarios.stored import scenarios_of
from ludus.types import Course, Spec

STEPS = 40


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["speed", "drivers"])
    parser.add_argument("--envs", type=int, nargs="+", default=[1, 16, 256, 4096])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--train", nargs="*", default=["ppo", "sac"])
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--variant", nargs="+", default=["none"])
    parser.add_argument("--scenarios", help="a stored set of driving scenarios; without it they are generated")
    given = parser.parse_args()
    about = {"jax": jax.__version__, "device": jax.devices()[0].device_kind, "cpu": platform.machine()}
    told = speed(given.envs, given.seconds, given.train, given.scenarios) if given.what == "speed" else drivers(given)
    print(json.dumps({**about, **told}, indent=2))


def speed(counts: list[int], seconds: float, train: list[str], stored: str | None) -> dict[str, Any]:
    """Return steps a second for numbers of scenarios that are played side by side."""
    env = ludus.make_env("driving")
    scenario = jax.eval_shape(lambda key: env.env.generate(key, "training", env.env.parameters), jax.random.key(0))
    size = sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(scenario))
    simulator = {str(count): simulated(count, seconds, stored) for count in counts}
    learning = {name: {str(count): trained(name, count, seconds, stored) for count in counts} for name in train}
    return {
        "observation": env.observation_space.shape[0],
        "bytes_per_scenario": size,
        "simulator": simulator,
        "train": learning,
    }


def made(count: int, stored: str | None) -> Any:
    """Make environments whose scenarios are generated, or come from a set."""
    return ludus.make_env("driving", count, **({} if stored is None else {"scenarios": stored}))


def simulated(count: int, seconds: float, stored: str | None) -> dict[str, float]:
    """Step `count` scenarios with random actions."""
    env = made(count, stored)
    supply = env.supply(0)
    course = Course({}, starts=supply.first(), data=supply.data)

    @jax.jit
    def roll(state: Any, key: jax.Array, course: Course) -> Any:
        chances = env.chances(course)

        def step(state: Any, key: jax.Array) -> Any:
            of_action, of_step, of_start = jax.random.split(key, 3)
            action = jax.random.uniform(of_action, (count, 2), float, -1.0, 1.0)
            keys, starts = jax.random.split(of_step, count), jax.random.split(of_start, count)
            state, outcome = env.step(state, action, Draw(keys, starts), chances)
            return state, outcome.reward.sum()

        return jax.lax.scan(step, state, jax.random.split(key, STEPS))

    began = time.perf_counter()
    begin = jax.jit(lambda keys, course: env.reset(keys, env.chances(course)))
    state = jax.block_until_ready(begin(jax.random.split(jax.random.key(0), count), course))
    state, _ = jax.block_until_ready(roll(state, jax.random.key(1), course))
    compiled, rounds, began = time.perf_counter() - began, 0, time.perf_counter()
    while time.perf_counter() - began < seconds or rounds < 2:
        state, _ = jax.block_until_ready(roll(state, jax.random.key(2 + rounds), course))
        rounds += 1
    steps = rounds * STEPS * count / (time.perf_counter() - began)
    return {"steps_per_second": round(steps), "first_seconds": round(compiled, 1)}


def trained(name: str, count: int, seconds: float, stored: str | None) -> dict[str, float]:
    """Train for a while and return the pace of the later half."""
    algorithm: Any = ludus.PPO(batch_size=max(1024, 32 * count), minibatch_size=max(256, 8 * count))
    if name == "sac":
        algorithm = ludus.SAC(learning_starts=count, replay_size=100_000)
    settings = ludus.Settings(eval_frequency=0, eval_episodes_final=0, verbose=False)
    trainer = ludus.Trainer(algorithm, made(count, stored), settings)
    length = algorithm.rollout_length(count) * count
    steps, began = 0, time.perf_counter()
    trainer.train(total_steps=length)
    compiled, began = time.perf_counter() - began, time.perf_counter()
    goal = length
    while time.perf_counter() - began < seconds:
        goal += length * max(1, 2048 // length)
        steps = trainer.train(total_steps=goal).steps - length
    pace = steps / (time.perf_counter() - began)
    return {"steps_per_second": round(pace), "first_seconds": round(compiled, 1)}


def drivers(given: argparse.Namespace) -> dict[str, Any]:
    """Return what the evaluation set holds, and what each driver by rule reaches in it."""
    return {"set": evaluation_set(given.episodes)} | {
        variant: {driver: driven(driver, variant, given.episodes) for driver in DRIVERS if driver != "agent"}
        for variant in given.variant
    }


def evaluation_set(count: int) -> dict[str, Any]:
    """Describe the evaluation set."""
    env = Driving()
    generated = Generated(env, "evaluation", 0)
    arrays = {name: array[:count] for name, array in generated.up_to(count).items()}
    scenarios = scenarios_of(env, arrays)
    red = jax.vmap(lambda roads: jnp.stack([lights(roads, t / 10).is_red[roads.route] for t in range(0, 81, 5)]).any())
    moving = (scenarios["crew"].is_there & (scenarios["cars"].speed > 0.5)).sum(1)
    names = [*env.templates["training"], *env.templates["evaluation"]]
    kinds, counts = np.unique(scenarios["roads"].template, return_counts=True)
    import hashlib

    return {
        "sha256": hashlib.sha256(b"".join(digests_of(arrays))).hexdigest(),
        "templates": {names[kind]: int(number) for kind, number in zip(kinds, counts, strict=True)},
        "median_moving_cars": float(np.median(moving)),
        "share_with_red_on_the_route": float(np.asarray(red(scenarios["roads"])).mean()),
        "not_usable": generated.skipped,
    }


def driven(driver: str, variant: str, episodes: int) -> dict[str, Any]:
    """Evaluate a driver by rule."""
    env = ludus.make_env("driving", 16, driver=driver, variant=variant)
    policy = idle_policy(Spec(env.observation_space, env.action_space, 16), env.id)
    evaluation = ludus.evaluate(policy, env, episodes)
    means, bounds = evaluation.summary(), evaluation.intervals()
    last = [name for name in evaluation.info if name.endswith("/last")]
    return {name.split("/")[1]: [round(means[name], 4), *(round(x, 4) for x in bounds.get(name, ()))] for name in last}


if __name__ == "__main__":
    main()
