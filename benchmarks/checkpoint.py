"""What checkpoints cost: how long training waits for each, and how much each writes. Prints one JSON object.

    .venv/bin/python benchmarks/checkpoint.py 20

N checkpoints are written of each run, with training between them. `blocked_ms` is the time that training waits: for
the copy of what has changed; `written_ms` is how long the other thread then takes until all of it is on disk and read
back. `new_bytes` is what the replay has taken in since the checkpoint before. The first checkpoint is not counted:
programs are compiled then, and a large replay is written whole.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import ludus
from ludus.training.checkpoint_writer import CheckpointOptions

NEVER = CheckpointOptions(every_iterations=0, every_minutes=0)


def ppo() -> tuple[ludus.Trainer, int]:
    """PPO on CartPole with the preset's settings, and the steps between two checkpoints."""
    env = ludus.make_env("CartPole-v1", num_envs=8)
    algorithm = ludus.PPO(learning_rate=3e-3, batch_size=1024, minibatch_size=128, epochs_per_update=8)
    return trainer(algorithm, env), 10 * 1024


def sac() -> tuple[ludus.Trainer, int]:
    """SAC with a replay of a million transitions of HalfCheetah's size, full, and few gradient steps."""
    env = ludus.make_env("gym:HalfCheetah-v5", num_envs=8, num_workers=0)
    algorithm = ludus.SAC(replay_size=1_000_000, learning_starts=256, unroll_length=32, updates_per_step=1 / 64)
    return trainer(algorithm, env), 20 * 256


def trainer(algorithm: Any, env: Any) -> ludus.Trainer:
    """Return a trainer that writes checkpoints only when it is asked to."""
    folder = Path(tempfile.mkdtemp(prefix="ludus-checkpoint-"), "run")
    made = ludus.Trainer(
        algorithm,
        env,
        ludus.Settings(eval_frequency=0, checkpoint=NEVER, num_checkpoints=0, verbose=False),
        run_dir=folder,
    )
    made.final_episodes = 0
    return made


def measure(made: ludus.Trainer, steps: int, count: int) -> dict[str, Any]:
    """Write checkpoints with training between them."""
    blocked, written, sizes, total = [], [], [], 0
    save = made.keeper.save

    def timed(*arguments: Any) -> None:
        made.keeper.settle()
        began = time.perf_counter()
        save(*arguments)
        blocked.append(time.perf_counter() - began)
        made.keeper.settle()
        written.append(time.perf_counter() - began)
        sizes.append(made.keeper.checkpoints.last_bytes)

    made.keeper.save = timed
    for _ in range(count + 1):
        total += steps
        made.train(total_steps=total)  # the end of each call writes one
    row = [blocked, written, sizes]
    blocked, written, sizes = (values[1:] for values in row)
    return {
        "checkpoints": count,
        "blocked_ms": round(1e3 * statistics.median(blocked), 3),
        "blocked_ms_max": round(1e3 * max(blocked), 3),
        "written_ms": round(1e3 * statistics.median(written), 1),
        "bytes": int(statistics.median(sizes)),
        "first_bytes": row[2][0],
        "steps_between": steps,
    }


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=20)
    given = parser.parse_args()
    results = {"ppo_cartpole": measure(*ppo(), given.count)}
    made, steps = sac()
    results["sac_1m_replay"] = measure(made, steps, given.count)
    stored = made.state.learner.replay
    row = sum(leaf.nbytes / len(leaf) for part in (stored.frames, stored.transitions) for leaf in _leaves(part))
    results["sac_1m_replay"]["new_bytes"] = int(row * steps)
    made.env.close()
    print(json.dumps({"version": ludus.__version__, **results}))


def _leaves(tree: Any) -> list[Any]:
    import jax

    return jax.tree.leaves(tree)


if __name__ == "__main__":
    main()
