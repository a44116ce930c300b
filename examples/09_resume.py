"""A run is stopped and goes on, bit by bit as if it had not been: the same numbers as in one piece."""

import json
from pathlib import Path

import ludus

SETTINGS = ludus.Settings(seed=0, eval_frequency=0, checkpoint=ludus.CheckpointOptions(every_iterations=4))


def trainer(folder: str) -> ludus.Trainer:
    env = ludus.make_env("CartPole-v1", num_envs=8)
    return ludus.Trainer(ludus.PPO(batch_size=512, minibatch_size=128), env, SETTINGS, run_dir=folder)


def returns(folder: str) -> list:
    rows = map(json.loads, Path(folder, "metrics.jsonl").read_text().splitlines())
    return [row.get("episode_return_mean") for row in rows if row["kind"] == "train"]


trainer("runs/whole").train(total_steps=8192)

trainer("runs/parts").train(total_steps=8192, callback=lambda metrics: metrics["iteration"] < 7)  # False ends it
ludus.Trainer.resume("runs/parts").train(total_steps=8192)

assert returns("runs/parts") == returns("runs/whole")
print("the same", len(returns("runs/whole")), "iterations, in one piece and in two")
