"""What it costs to share work out to several devices or processes. Prints one JSON object.

    .venv/bin/python benchmarks/scale.py --devices 1 2 4 8 --repeats 3
    .venv/bin/python benchmarks/scale.py --only ppo --devices 1 2
    .venv/bin/python benchmarks/scale.py --only processes --repeats 3

Every point is a process of its own, and all points of a case do the same work: the same environments, batches and
seeds. The devices are simulated, on the cores of one machine: they cannot be faster than one, and what they take
longer is what sharing costs. `seconds` and `cpu_seconds` (of all threads) are of one iteration, the least of several
chunks; `overhead` is how much more CPU time an iteration takes than on one device. On a machine that others use too
only CPU time says anything. `pieces` is that overhead without any sharing: one device does an n-th of the work, with an
n-th of environments and rows, n times. What a program costs however few rows it has is in it, and no way of sharing
can do better on the same cores.

`processes` compares one process of one and of two devices with two processes of one each, started by the command line:
the CPU seconds of all of them, of an iteration.

Of the compiled program are counted, for each device: floating-point operations (loops once), what is said to the other
devices in an iteration, and how many rows of environments it has. `sums` are measured sums over the devices alone: how
long one takes for so many numbers. From those the model in docs/en/devices.md is checked.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

CASES = ("ppo", "gru", "sac", "processes")
CHUNK = 16
"""Iterations that are timed at once."""
SIZES = (1, 10_000, 1_000_000)
"""Numbers in a sum over devices."""
MOVED = re.compile(r"= (\(?[^=]*?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(")


def trainer(case: str, devices: int, piece: int = 1) -> Any:
    """Return a trainer of a case, whose work is the same on any number of devices; or of one of so many pieces."""
    import ludus

    if case == "sac":
        env = ludus.make_env("Pendulum-v1", 64 // piece)
        algorithm: Any = ludus.SAC(
            batch_size=2048 // piece, replay_size=65_536 // piece, unroll_length=4, learning_starts=256 // piece,
            updates_per_step=piece / 64,
        )  # fmt: skip
    else:
        env = ludus.make_env("CartPole-v1", 512 // piece)
        network = ludus.GRU(memory_size=64) if case == "gru" else ludus.MLP((128, 128))
        algorithm = ludus.PPO(
            batch_size=8192 // piece, minibatch_size=2048 // piece, epochs_per_update=4, network=network
        )
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


def timed(made: Any, repeats: int, chunk: int) -> tuple[float, float]:
    """Return the least seconds and CPU seconds of an iteration."""
    per_iteration = made.env.num_envs * made.algorithm.rollout_length(made.env.num_envs)
    warm_up = 4 if "SAC" in type(made.algorithm).__name__ else 1
    made.train(total_steps=warm_up * per_iteration)
    wall, cpu = [], []
    for repeat in range(repeats):
        began, used = time.perf_counter(), time.process_time()
        made.train(total_steps=(warm_up + chunk * (repeat + 1)) * per_iteration)
        wall.append((time.perf_counter() - began) / chunk)
        cpu.append((time.process_time() - used) / chunk)
    return min(wall), min(cpu)


def point(case: str, devices: int, repeats: int) -> dict[str, Any]:
    """Measure one case on so many devices."""
    import jax

    made = trainer(case, devices)
    wall, cpu = timed(made, repeats, CHUNK)
    program = next(iter(made.loop.repeat.programs.values()))[0]
    learner = made.algorithm.policy(made.state.learner)
    per_iteration = made.env.num_envs * made.algorithm.rollout_length(made.env.num_envs)
    return {
        "seconds": wall,
        "cpu_seconds": cpu,
        "steps_per_second": per_iteration / wall,
        "flops_per_device": program.cost_analysis()["flops"],
        "environments_per_device": made.state.carry.env.obs.addressable_shards[0].data.shape[0],
        "parameters": sum(x.size for x in jax.tree.leaves(learner.parameters)),
        **moved(program.as_text()),
        **({"sums": sums(devices)} if devices > 1 else {}),
    }


def piece(case: str, count: int, repeats: int) -> float:
    """Return the CPU seconds of so many times one of so many pieces of the work, on one device."""
    return timed(trainer(case, 1, count), repeats, CHUNK * count)[1] * count


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


TRAIN = [
    "train", "env=CartPole-v1", "preset=null", "num_envs=512", "algorithm.batch_size=8192",
    "algorithm.minibatch_size=2048", "algorithm.epochs_per_update=4", "algorithm.network.hidden_sizes=[128,128]",
    "eval_frequency=0", "eval_episodes_final=0", "health_frequency=0", "num_checkpoints=0", "record_behaviour=false",
    "tracking.tensorboard=false", "verbose=false",
]  # fmt: skip
SHORT, LONG = 2, 102
"""Iterations of two runs, whose difference is what iterations take."""


def run(processes: int, devices: int, iterations: int) -> tuple[float, float]:
    """Train by the command line; return seconds, and CPU seconds of all processes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    words = [sys.executable, "-m", "ludus", *TRAIN, f"total_steps={8192 * iterations}"]
    words += (
        [f"devices={devices}"] if processes == 1 else [f"hosts.count={processes}", f"hosts.address=127.0.0.1:{port}"]
    )
    began, cpu = time.perf_counter(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        own = [[f"hosts.number={number}"] if processes > 1 else [] for number in range(processes)]
        started = [
            subprocess.Popen([*words, "run_dir=run", *more], cwd=folder, stdout=subprocess.DEVNULL) for more in own
        ]
        for process in started:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise SystemExit(f"ended with code {process.returncode}")
            cpu += usage.ru_utime + usage.ru_stime
    return time.perf_counter() - began, cpu


def processes(repeats: int) -> dict[str, Any]:
    """Compare one process with two."""
    found = {}
    for name, (count, devices) in {"1 of 1 device": (1, 1), "1 of 2 devices": (1, 2), "2 of 1 device": (2, 2)}.items():
        run(count, devices, SHORT)  # compiled programs are kept: this one alone compiles
        short, long = (
            [min(x) for x in zip(*(run(count, devices, iterations) for _ in range(repeats)), strict=True)]
            for iterations in (SHORT, LONG)
        )
        seconds, cpu = ((b - a) / (LONG - SHORT) for a, b in zip(short, long, strict=True))
        found[name] = {"seconds": seconds, "cpu_seconds": cpu}
    for at in found.values():
        at["overhead"] = at["cpu_seconds"] / found["1 of 1 device"]["cpu_seconds"] - 1
    return found


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CASES, nargs="+", default=CASES)
    parser.add_argument("--devices", type=int, nargs="+", default=(1, 2, 4, 8))
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--point", nargs=2, metavar=("CASE", "DEVICES"), help=argparse.SUPPRESS)
    parser.add_argument("--piece", nargs=2, metavar=("CASE", "PIECES"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.point:
        print(json.dumps(point(given.point[0], int(given.point[1]), given.repeats)))
        return
    if given.piece:
        print(json.dumps(piece(given.piece[0], int(given.piece[1]), given.repeats)))
        return
    found: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "iterations": CHUNK}
    for case in given.only:
        if case == "processes":
            found[case] = processes(given.repeats)
            continue
        points = {str(n): measured("--point", case, n, "--repeats", given.repeats) for n in given.devices}
        if "1" in points:
            for at in points.values():
                at["overhead"] = at["cpu_seconds"] / points["1"]["cpu_seconds"] - 1
            for n in set(points) - {"1"}:
                pieces = measured("--piece", case, n, "--repeats", given.repeats)
                points[n]["pieces"] = pieces / points["1"]["cpu_seconds"] - 1
        found[case] = points
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
