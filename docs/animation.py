"""Make README's animation from a run: three policies of it side by side in the same episode, as a small gif.

ludus train env=BipedalWalker-v3 total_steps=1998848 checkpoint.every_iterations=4 checkpoint.keep_every=1 run_dir=RUN
.venv/bin/python docs/animation.py RUN STEP STEP docs/en/images/walk.gif
"""

import argparse
import contextlib
from pathlib import Path

from ludus.envs.registry import make_env
from ludus.report.video.encode import Tile, grid_frames, tile_size, write_gif
from ludus.runs.folder import read_config
from ludus.training.episode_pictures import pictures_of
from ludus.training.film import headless
from ludus.training.past_policies import untrained
from ludus.training.policy_choice import ChosenPolicy, choose
from ludus.training.record_episode import play_episode

SECONDS, WIDTH, RATE = 11.0, 960, 16.7


def main() -> None:
    """Play, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("checkpoints", nargs="+")
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    headless()
    config = read_config(given.run)
    stages = [
        ChosenPolicy(untrained(given.run), None, "untrained", 0),
        *(choose(given.run, c) for c in given.checkpoints),
    ]
    tiles, rate = [], 50.0
    with contextlib.closing(make_env(str(config["env"]).replace("envpool:", "gym:"))) as env:
        for chosen in stages:
            episode = play_episode(chosen.policy, env, chosen.critic, seed=config["seed"], about=chosen.about(config))
            pictures, rate, _ = pictures_of(episode, env, tile_size(len(stages)), print)
            tiles.append(Tile(episode, pictures, f"after {chosen.steps:,} steps" if chosen.steps else "untrained"))

    def frames(every: int):
        for count, frame in enumerate(grid_frames(tiles, rate)(every)):
            if count * every > SECONDS * rate:
                return
            yield frame

    write_gif(given.output, frames, rate, WIDTH, RATE)
    print(f"{given.output}: {given.output.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
