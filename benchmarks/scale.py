"""What it costs to share work out to several devices or processes. Prints one JSON object.

    .venv/bin/python benchmarks/scale.py --devices 1 2 4 8 --repeats 3
    .venv/bin/python benchmarks/scale.py --only ppo --devices 1 2

Every point is a process of its own, and all points of a case do the same work: the same environments, batches and
seeds. The devices are simulated, on the cores of one machine: they cannot be faster than one, and what they take
longer is what sharing costs. `seconds` and `cpu_seconds` (of all threads) are of one iteration, the least of several
chunks; `overhead` is how much more CPU time an iteration takes than on one device. On a machine that others use too
only CPU time says anything.

Of the compiled program are counted, for each device: floating-point operations (loops once), what is said to the other
devices in an iteration, and how many rows of environments it has. `sums` are measured sums over the devices alone: how
long one takes for so many numbers. From those the model in docs/en/devices.md is checked.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from typing import Any

CHUNK = 2
"""Iterations that are timed at once."""
SIZES = (1, 10_000, 1_000_000)
"""Numbers in a sum over devices."""
MOVED = re.compile(r"= (\(?[^=]*?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


def trainer(case: str, devices: int) -> Any:
    """Return a trainer of a case, whose work is the same on any number of devices."""
    import ludus

    if case == "sac":
        env = ludus.make_env("Pendulum-v1", 64)
        algorithm: Any = ludus.SAC(
            batch_size=2048, replay_size=65_536, unroll_length=4, learning_starts=256, updates_per_step=1 / 64
        )
    else:
        env = ludus.make_env("CartPole-v1", 512)
        network = ludus.GRU(memory_size=64) if case == "gru" else ludus.MLP((128, 128))
        algorithm = ludus.PPO(batch_size=8192, minibatch_size=2048, epochs_per_update=4, network=network)
    settings = ludus.Settings(
        eval_frequency=0, eval_episodes_final=0, health_frequency=0, verbose=False, devices=devices, num_checkpoints=0
    )
    return ludus.Trainer(algorithm, env, settings)


def moved(text: str) -> dict[str, int]:
    """Count what a compiled program says to other devices: how often, and bytes."""
    count = size = 0
    for shapes, _ in MOVED.findall(text):
        count += 1
        for kind, dims in re.findall(r"\b(pred|[a-z]+\d+)\[([\d,]*)\]", shapes):
            bits = 8 if kind == "pred" else int(re.sub(r"\D", "", kind))
            numbers = 1
            for dim in filter(None, dims.split(",")):
                numbers *= int(dim)
            size += numbers * bits // 8
    return {"messages": count, "message_bytes": size}


def point(case: str, devices: int, repeats: int) -> dict[str, Any]:
    """Measure one case on so many devices."""
    import jax

    made = trainer(case, devices)
    per_iteration = made.env.num_envs * made.algorithm.rollout_length(made.env.num_envs)
    warm_up = 4 if case == "sac" else 1
    made.train(total_steps=warm_up * per_iteration)
    wall, cpu = [], []
    for repeat in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        made.train(total_steps=(warm_up + CHUNK * (repeat + 1)) * per_iteration)
        wall.append((time.perf_counter() - began) / CHUNK)
        cpu.append((time.process_time() - used) / CHUNK)
    program = next(iter(made.loop.repeat.programs.values()))[0]
    learner = made.algorithm.policy(made.state.learner)
    return {
        "seconds": min(wall),
        "cpu_seconds": min(cpu),
        "steps_per_second": per_iteration / min(wall),
        "flops_per_device": program.cost_analysis()["flops"],
        "environments_per_device": made.state.carry.env.obs.addressable_shards[0].data.shape[0],
        "parameters": sum(x.size for x in jax.tree.leaves(learner.parameters)),
        **moved(program.as_text()),
        **({"sums": sums(devices)} if devices > 1 else {}),
    }


def sums(devices: int) -> dict[str, float]:
    """Return the seconds of one sum over all devices, for arrays of several sizes; each waits for the one before."""
    import jax
    import jax.numpy as jnp

    found = {}
    mesh = jax.make_mesh((devices,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    for size in SIZES:
        rounds = max(10, 100_000 // size) if size > 1 else 200

        def body(x: Any) -> Any:
            def one(_: Any, y: Any) -> Any:
                return jax.lax.psum(y, "devices") / devices

            return jax.lax.fori_loop(0, rounds, one, x)  # noqa: B023  called within this round

        shared = jax.shard_map(body, mesh=mesh, in_specs=jax.P(), out_specs=jax.P(), check_vma=False)
        program, x = jax.jit(shared), jnp.ones(size)
        program(x).block_until_ready()
        began = time.perf_counter()
        program(x).block_until_ready()
        found[str(size)] = (time.perf_counter() - began) / rounds
    return found


def measured(*words: object) -> Any:
    """Run this file in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, *map(str, words)], capture_output=True, text=True, check=False, timeout=1200
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("ppo", "gru", "sac"), nargs="+", default=("ppo", "gru", "sac"))
    parser.add_argument("--devices", type=int, nargs="+", default=(1, 2, 4, 8))
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--point", nargs=2, metavar=("CASE", "DEVICES"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.point:
        print(json.dumps(point(given.point[0], int(given.point[1]), given.repeats)))
        return
    found: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "iterations": CHUNK}
    for case in given.only:
        points = {str(n): measured("--point", case, n, "--repeats", given.repeats) for n in given.devices}
        if "1" in points:
            for at in points.values():
                at["overhead"] = at["cpu_seconds"] / points["1"]["cpu_seconds"] - 1
        found[case] = points
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
