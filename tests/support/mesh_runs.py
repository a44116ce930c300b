"""Small runs on several simulated devices. Run as a script by the tests: it prints what it found as JSON.

The devices of a process are counted once, when JAX starts: these runs have a process with eight of their own.
"""

import contextlib
import json
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

import ludus
from ludus.algorithms.replay import Replay
from ludus.envs import restart
from ludus.envs.base import Environment
from ludus.spaces import Box, Discrete
from ludus.training.checkpoint_writer import CheckpointOptions
from ludus.training.state_arrays import differences
from ludus.training.verify import journal_of, state_of
from ludus.types import Step

NUM_ENVS, STEPS = 16, 4
MINIBATCH = 32
"""No other array has so many rows."""
CASES = ("ppo", "ppo episodes", "ppo gru", "ppo host", "ppo restarts", "sac", "sac gru")
COUNTS = {"ppo": (2, 4, 8), "ppo gru": (2, 8), "sac": (2, 8)}
"""On how many devices a case is tried besides one; the others on four."""


def algorithm(case: str) -> Any:
    """Return the algorithm of a case."""
    if case.startswith("sac"):
        network = (
            ludus.GRU(memory_size=4, hidden_sizes=(8,), shared=False) if "gru" in case else ludus.MLP((8,), "relu")
        )
        more = {"segment_length": 2, "burn_in": 2} if "gru" in case else {}
        return ludus.SAC(
            batch_size=MINIBATCH, replay_size=1024, unroll_length=STEPS, learning_starts=32, updates_per_step=0.25,
            network=network, normalize_observations=True, **more,
        )  # fmt: skip
    network = ludus.GRU(memory_size=4, hidden_sizes=(8,)) if "gru" in case else ludus.MLP((8,))
    return ludus.PPO(
        batch_size=NUM_ENVS * STEPS, minibatch_size=MINIBATCH, epochs_per_update=2, network=network,
        segment_length=2 if "gru" in case else None, anneal_learning_rate=False,
        normalize_observations=True, normalize_rewards=True,
    )  # fmt: skip


def trainer(case: str, devices: int, run_dir: Path | None = None, **more: Any) -> ludus.Trainer:
    """Return a trainer of a case."""
    name = {"ppo restarts": "Acrobot-v1", "ppo host": "gym:CartPole-v1"}.get(case, "CartPole-v1")
    name = "Pendulum-v1" if case.startswith("sac") else name
    limit = {"max_episode_steps": 3} if case == "ppo restarts" else {}
    env = ludus.make_env(name, NUM_ENVS, **limit, **({"num_workers": 0} if case == "ppo host" else {}))
    settings: dict[str, Any] = {"seed": 3, "eval_frequency": 0, "eval_episodes_final": 0, "num_checkpoints": 0}
    settings |= {"collect": "episodes"} if case == "ppo episodes" else {}
    settings |= {"verbose": False, "record_behaviour": False, "health_frequency": 0, "devices": devices}
    return ludus.Trainer(algorithm(case), env, ludus.Settings(**settings | more), run_dir=run_dir)


def trained(case: str, devices: int, iterations: int = 1) -> ludus.Trainer:
    """Return a trainer that has trained."""
    made = trainer(case, devices)
    with contextlib.closing(made.env):
        made.train(total_steps=NUM_ENVS * STEPS * iterations if case != "ppo episodes" else NUM_ENVS)
    return made


def error(ours: Any, theirs: Any) -> float:
    """Return the greatest difference between the floats of two states, in units of 1 or of their size."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in pairs]
    floats = [np.abs(a - b) / (1 + np.abs(b)) for a, b in pairs if a.dtype.kind == "f" and a.size]
    others = [a != b for a, b in pairs if a.dtype.kind != "f" and a.size]
    return max(float(x.max()) for x in [*floats, *others])


def places(made: ludus.Trainer) -> dict[str, Any]:
    """Return what lies where: whether copies are equal bit by bit, and which share of its rows a device has."""
    state = made.state
    learner = jax.tree.leaves(state.learner, is_leaf=lambda node: isinstance(node, Replay))
    rings = [
        x for node in learner if isinstance(node, Replay) for x in jax.tree.leaves((node.frames, node.transitions))
    ]
    copies = [x for x in learner if not isinstance(x, Replay)]
    shared = [*jax.tree.leaves((state.carry.env, state.carry.memory)), *rings]
    return {
        "copies": len(copies),
        "equal": all(_are_equal(leaf) for leaf in copies),
        "shares": sorted({len(x) // shard.data.shape[0] for x in shared for shard in x.addressable_shards}),
        "devices": sorted({len(x.sharding.device_set) for x in shared}),
        "rings": len(rings),
    }


def _are_equal(leaf: Any) -> bool:
    shards = [np.asarray(shard.data) for shard in leaf.addressable_shards]
    return all(x.shape == leaf.shape and x.tobytes() == shards[0].tobytes() for x in shards)


def products(made: ludus.Trainer) -> list[int]:
    """Return how many rows the matrix products of the compiled iteration have on each device."""
    program = list(made.loop.repeat.programs.values())[-1][0]  # another case may share the loop
    found = re.findall(r"= f32\[([\d,]+)\]\S* (?:dot|custom-call)\(", program.as_text())
    return sorted({int(number) for shape in found for number in shape.split(",")})


def agreement(case: str) -> dict[str, Any]:
    """Compare one iteration on one device with the same on several."""
    one = trained(case, 1)
    found: dict[str, Any] = {} if case == "ppo host" else {"1": {"products": products(one)}}
    for count in COUNTS.get(case, (4,)):
        several = trained(case, count)
        found[str(count)] = {
            "error": error(several.state.learner, one.state.learner),
            "carry": error(several.state.carry, one.state.carry),
            "counts": several.record.counts == one.record.counts,
            **places(several),
        }
        if case != "ppo host":
            found[str(count)]["products"] = products(several)
    return found


@dataclass(frozen=True)
class Pictures(Environment):
    """Shows a picture that grows brighter."""

    observation_space: Box = field(default_factory=lambda: Box(0, 255, (36, 36, 1), np.uint8))
    action_space: Discrete = field(default_factory=lambda: Discrete(2))
    max_episode_steps: int = 5

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        picture = jax.random.randint(key, (36, 36, 1), 0, 255).astype("uint8")
        return picture, picture

    def step(self, state: Any, action: Any, key: jax.Array) -> tuple[Any, Step]:
        return state + np.uint8(1), Step(state, action.astype("float32"), jax.numpy.asarray(False))


def pictures() -> dict[str, Any]:
    """Count the pictures that each device looks at at once: the compiler alone would let each judge all of them."""
    found, learnt = {}, []
    for count in (1, 4):
        env = ludus.make_env(Pictures(), NUM_ENVS)
        settings = ludus.Settings(
            eval_frequency=0, eval_episodes_final=0, health_frequency=0, num_checkpoints=0, verbose=False,
            record_behaviour=False, devices=count,
        )  # fmt: skip
        made = ludus.Trainer(algorithm("ppo"), env, settings)
        made.train(total_steps=NUM_ENVS * STEPS)
        program = next(iter(made.loop.repeat.programs.values()))[0]
        first_layer = re.findall(r"f32\[(\d+),8,8,32\]", program.as_text())
        found[str(count)] = max(map(int, first_layer))
        learnt.append(made.state.learner)
    return {"pictures": found, "error": error(*learnt)}


def started_in_time() -> dict[str, Any]:
    """Compare likewise where starts are made when they are needed, each device by itself."""
    restart.MOST_BYTES = 0
    return agreement("ppo restarts")


def one_program() -> dict[str, Any]:
    """Count the programs that a run compiles after its first chunk, and what devices tell each other in a minibatch."""
    made, compiled = trainer("ppo", 4), []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    made.train(total_steps=NUM_ENVS * STEPS)
    before = len(compiled)
    made.train(total_steps=NUM_ENVS * STEPS * 40)
    text = list(made.loop.repeat.programs.values())[-1][0].as_text()
    words = re.findall(r"= (.*) all-(?:reduce|gather)\(.*/while/body/closed_call/", text)
    return {"first": before, "more": len(compiled) - before, "words": sorted(words)}


OPTIONS = CheckpointOptions(every_iterations=3, every_minutes=0, keep_last=10, on_error="stop")


def resumed(case: str, folder: Path, first: int, *others: int) -> ludus.Trainer:
    """Train three iterations on so many devices, then three more on each of the other numbers."""
    per_part = NUM_ENVS * STEPS * 3
    made = trainer(case, first, folder, checkpoint=OPTIONS)
    with contextlib.closing(made.env):
        made.train(total_steps=per_part)
    for part, count in enumerate(others):
        made = ludus.Trainer.resume(folder, devices=count, verbose=False)
        with contextlib.closing(made.env):
            made.train(total_steps=per_part * (part + 2))
    return made


def levels(folder: Path) -> list[str]:
    """Return how exactly a run went on, each time."""
    return [entry["level"] for entry in json.loads((folder / "run.json").read_text())["resumed"]]


def resumes(case: str) -> dict[str, Any]:
    """Resume on the same number of devices, and on others."""
    with tempfile.TemporaryDirectory() as scratch:
        straight, same, elastic, one = (Path(scratch, name) for name in ("straight", "same", "elastic", "one"))
        made = trainer(case, 4, straight, checkpoint=OPTIONS)
        with contextlib.closing(made.env):
            made.train(total_steps=NUM_ENVS * STEPS * 6)
        resumed(case, same, 4, 4)
        last = resumed(case, elastic, 8, 1, 8)
        resumed(case, one, 1, 1, 1)
        states = state_of(elastic), state_of(one)
        off = {name: np.abs(states[0][name] - x).max() for name, x in states[1].items() if x.dtype.kind == "f"}
        return {
            "same": differences(state_of(straight), state_of(same)),
            "journal": journal_of(straight) == journal_of(same),
            "levels": {"same": levels(same), "elastic": levels(elastic), "one": levels(one)},
            "elastic": max(float(x) for name, x in off.items() if name.startswith("learner/")),
            "named": len(json.loads((elastic / "run.json").read_text())["devices"]),
            **places(last),
        }


def handed_over() -> dict[str, Any]:
    """Let what several devices have learnt go on with one, and back."""
    several, one = trained("ppo", 4), trainer("ppo", 1)
    one.learner = several.learner
    one.train(total_steps=NUM_ENVS * STEPS)
    back = trainer("ppo", 4)
    back.learner = one.learner
    back.train(total_steps=NUM_ENVS * STEPS)
    evaluation = back.evaluate(4)
    return {"returns": len(evaluation.returns), **places(back)}


def refusals() -> list[str]:
    """Return what is said of mistakes."""
    told, _ = [], jax.devices()  # JAX runs

    def refused(make: Callable[[], Any]) -> None:
        try:
            make()
        except ludus.LudusError as error:
            told.append(str(error))

    env = ludus.make_env("CartPole-v1", 12)
    quiet: dict[str, Any] = {"verbose": False}
    ppo = ludus.PPO(batch_size=96, minibatch_size=12)
    refused(lambda: trainer("ppo", 16))
    refused(lambda: trainer("ppo", 1000))
    refused(lambda: ludus.Trainer(ppo, env, ludus.Settings(devices=8, **quiet)))
    refused(lambda: ludus.Trainer(ppo, ludus.make_env("CartPole-v1", 16), ludus.Settings(devices=8, **quiet)))
    refused(lambda: ludus.Settings(devices=0))
    refused(lambda: ludus.Settings(devices="all"))
    pendulum = ludus.make_env("Pendulum-v1", 16)
    for sac in (ludus.SAC(batch_size=36), ludus.SAC(replay_size=1000, unroll_length=1)):
        refused(lambda sac=sac: ludus.Trainer(sac, pendulum, ludus.Settings(devices=8, **quiet)))
    gru = ludus.PPO(batch_size=256, minibatch_size=64, network=ludus.GRU(memory_size=8))
    refused(lambda: ludus.Trainer(gru, ludus.make_env("CartPole-v1", 16), ludus.Settings(devices=8, **quiet)))
    return told


def main(*names: str) -> None:
    """Print what was found, by the names of what was asked for."""
    checks: dict[str, Callable[[], Any]] = {"one program": one_program}  # the first: the others compile the same one
    checks |= {f"agreement {case}": lambda case=case: agreement(case) for case in CASES}
    checks |= {"agreement ppo restarts": started_in_time, "refusals": refusals, "pictures": pictures}
    checks |= {"resumes ppo": lambda: resumes("ppo"), "resumes sac": lambda: resumes("sac"), "handed over": handed_over}
    print(json.dumps({name: check() for name, check in checks.items() if not names or name in names}))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main(*sys.argv[1:])
