"""Films of a run: choose one of its policies, let it play, keep the episode, and make a film of it.

`python -m ludus.training.film` is how a run that is going on has a film made, by another process (`film_process.py`).
"""

import argparse
import os
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.algorithms.critic import load_critic
from ludus.algorithms.policy import load_policy
from ludus.envs.base import AnyEnv
from ludus.envs.signals import action_names
from ludus.report.video.encode import Tile, about_episode, episode_frames, grid_frames, tile_size, write_film
from ludus.report.video.overlay import SCENE
from ludus.runs.episode_file import EPISODES, Episode, write_episode
from ludus.runs.folder import read_config
from ludus.training.episode_pictures import Say, first_line, pictures_of
from ludus.training.evaluation import evaluate
from ludus.training.policy_choice import ChosenPolicy, choose, stages
from ludus.training.record_episode import extremes, play_episode
from ludus.training.run_config import environment_in
from ludus.types import LudusError

VIDEOS = "videos"


def film(
    run: str | Path,
    checkpoint: str | None = None,
    *,
    episodes: int = 1,
    among: int = 0,
    seed: int | None = None,
    gif: bool = False,
    say: Say = print,
) -> list[Path]:
    """Let a policy of a run play, keep the episodes in `episodes/` and their films in `videos/`; return all files made.

    Args:
        run: the run folder.
        checkpoint: which policy, as in `choose`.
        episodes: how many episodes; the first ones of the evaluation with this seed.
        among: if not 0, the worst and the best of so many instead.
        seed: of the evaluation; None is the run's own, whose evaluations are then what is seen.
        gif: make a gif besides.
        say: is told what happens.
    """
    run = Path(run)
    config = read_config(run)
    chosen, env = choose(run, checkpoint), _environment(config, lanes=bool(among))
    seed = int(config.get("seed") or 0) if seed is None else seed
    try:
        if among:
            evaluation = evaluate(chosen.policy, env, among, seed)
            say(f"{chosen.label}: {evaluation}")
            wanted = {f"{chosen.label}-{name}": index for name, index in extremes(evaluation).items()}
        else:
            wanted = {chosen.label if i == 0 else f"{chosen.label}-episode{i}": i for i in range(episodes)}
        return film_episodes(run, chosen, env, wanted, seed=seed, gif=gif, say=say)
    finally:
        env.close()


def film_episodes(
    run: Path,
    chosen: ChosenPolicy,
    env: AnyEnv,
    wanted: Mapping[str, int],
    *,
    seed: int,
    gif: bool = False,
    say: Say = print,
) -> list[Path]:
    """Film episodes of an evaluation, by the names of their files and their numbers in it; return all files made."""
    made: list[Path] = []
    about = chosen.about(read_config(run))
    for name, index in wanted.items():
        episode = play_episode(chosen.policy, env, chosen.critic, seed=seed, index=index, about=about)
        made += keep(run, name, episode, env, gif, say)
    return made


def keep(run: Path, name: str, episode: Episode, env: AnyEnv, gif: bool, say: Say) -> list[Path]:
    """Write an episode, then its film: if that fails, the episode is there."""
    path = run / EPISODES / f"{name}.safetensors"
    write_episode(episode, path)
    made = [path, *film_episode(episode, run / VIDEOS / f"{name}.mp4", env, gif=gif, say=say)]
    for file in made[1:]:
        if file.suffix != ".jsonl":
            say(f"{file}: {len(episode):,} steps, return {episode.arrays['return'][-1]:.2f}")
    return made


def film_episode(episode: Episode, path: Path, env: AnyEnv, *, gif: bool = False, say: Say = print) -> list[Path]:
    """Make the film of an episode and return its files; `env` is what it was played in."""
    pictures, rate, note = pictures_of(episode, env, SCENE, say)
    frames = episode_frames(episode, pictures, rate, action_names(episode.about.env), note)
    try:
        return write_film(path, frames, rate, about_episode(episode), gif)
    except LudusError:
        raise
    except Exception as error:  # whatever an environment raises while it draws itself
        raise LudusError(f"{path}: {episode.about.env} could not be drawn ({first_line(error)})") from error


def film_grid(
    run: str | Path, *, seed: int | None = None, index: int = 0, gif: bool = False, say: Say = print
) -> list[Path]:
    """Make one film of the policies of a run side by side, from the untrained to the final, in the same episode."""
    run = Path(run)
    config = read_config(run)
    seed = int(config.get("seed") or 0) if seed is None else seed
    env = _environment(config)
    made, tiles, rate = [], [], 30.0
    try:
        policies = list(stages(run))
        for chosen in policies:
            episode = play_episode(
                chosen.policy, env, chosen.critic, seed=seed, index=index, about=chosen.about(config)
            )
            made.append(run / EPISODES / f"{chosen.label}.safetensors")
            write_episode(episode, made[-1])
            pictures, rate, _ = pictures_of(episode, env, tile_size(len(policies)), say)
            trained = f"{chosen.steps:,} steps" if chosen.steps is not None else ""
            name = "" if chosen.label.isdigit() else chosen.label
            tiles.append(Tile(episode, pictures, " · ".join(filter(None, [name, trained]))))
            say(f"{tiles[-1].title}: {len(episode):,} steps played, return {episode.arrays['return'][-1]:.2f}")
        about = {"tiles": [about_episode(tile.episode) for tile in tiles]}
        films = write_film(run / VIDEOS / "grid.mp4", grid_frames(tiles, rate), rate, about, gif)
    finally:
        env.close()
    say(f"{films[0]}: {len(tiles)} policies side by side")
    return made + films


def _environment(config: dict[str, Any], lanes: bool = False) -> AnyEnv:
    """Make the environment of a run in this process; what EnvPool played is played by Gymnasium, which can draw."""
    id = str(config.get("env"))
    drawable = {
        "env": f"gym:{id.removeprefix('envpool:')}" if id.startswith("envpool:") else id,
        "env_options": config.get("env_options"),
        "env_wrappers": config.get("env_wrappers"),
        "num_envs": config.get("num_envs") if lanes else 1,
    }
    return environment_in(drawable, "use ludus.training.film.film_episode in Python")


def headless() -> None:
    """Tell SDL, which draws many of Gymnasium's environments, that there is no screen; call it before they are made."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


def main(arguments: list[str] | None = None) -> int:
    """Film one saved policy of a run that is going on; end when whoever asked for it ends."""
    parser = argparse.ArgumentParser(prog="python -m ludus.training.film")
    parser.add_argument("run", type=Path)
    parser.add_argument("policy", type=Path)
    parser.add_argument("critic", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--iteration", type=int, required=True)
    given = parser.parse_args(arguments)
    threading.Thread(target=_end_with_parent, args=(given.policy.parent,), daemon=True).start()
    os.nice(19)
    headless()
    try:
        config = read_config(given.run)
        critic = load_critic(given.critic) if given.critic.is_file() else None
        chosen = ChosenPolicy(load_policy(given.policy), critic, str(given.steps), given.steps, given.iteration)
        env, seed = _environment(config), int(config.get("seed") or 0)
        episode = play_episode(chosen.policy, env, critic, seed=seed, about=chosen.about(config))
        keep(given.run, chosen.label, episode, env, False, lambda text: print(text, flush=True))
    except LudusError as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        return 2
    return 0


def _end_with_parent(folder: Path) -> None:
    """Wait until the other end of standard input is closed: then whoever asked is gone, however it ended."""
    while os.read(0, 4096):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main())
