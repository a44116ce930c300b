"""SAC with and without a few demonstrations, on Pendulum-v1.

    python benchmarks/imitation.py

A teacher (SAC, 20,000 steps) plays five episodes; then SAC and `bc_sac` learn for 4,000 steps with three seeds each,
and play 100 episodes. About ten minutes on two cores.
"""

import tempfile
from pathlib import Path

import ludus

SMALL = {"network": ludus.MLP((64, 64), "relu"), "batch_size": 128, "unroll_length": 8, "learning_starts": 200}
STEPS, SEEDS = 4000, (0, 1, 2)


def trained(algorithm: ludus.Algorithm, steps: int, seed: int) -> tuple[ludus.Policy, float]:
    """Return a policy and the mean return of 100 episodes."""
    settings = ludus.Settings(
        seed=seed, verbose=False, eval_frequency=0, eval_episodes_final=100, record_behaviour=False
    )
    trainer = ludus.Trainer(algorithm, ludus.make_env("Pendulum-v1", num_envs=4), settings)
    evaluation = trainer.train(total_steps=steps).evaluation
    return trainer.policy, float(evaluation.returns.mean())


def main() -> None:
    """Print a line for each algorithm."""
    teacher, reached = trained(ludus.SAC(**SMALL), 20_000, 9)
    print(f"teacher: {reached:.0f}", flush=True)
    path = Path(tempfile.mkdtemp()) / "demos.safetensors"
    env = ludus.make_env("Pendulum-v1", num_envs=5)
    ludus.write_demonstrations(ludus.record_demonstrations(teacher, env, episodes=5), path)
    imitation = {"demonstrations": str(path), "imitation_batch_size": 128}
    kinds = {
        "sac": ludus.SAC(**SMALL),
        "bc_sac, imitation=linear:1:0": ludus.BCSAC(**imitation, imitation="linear:1:0", **SMALL),
        "bc_sac, imitation=1": ludus.BCSAC(**imitation, **SMALL),
    }
    for name, algorithm in kinds.items():
        returns = [trained(algorithm, STEPS, seed)[1] for seed in SEEDS]
        print(f"{name}: {', '.join(f'{x:.0f}' for x in returns)}", flush=True)


if __name__ == "__main__":
    main()
