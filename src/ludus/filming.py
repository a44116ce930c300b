"""Films of a run: choose one of its policies, let it play, keep the episode, and make a film of it.

`python -m ludus.filming` is how a run that is going on has a film made, by another process (`film_process.py`).
"""

import argparse
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ludus.checkpoint import Checkpoints
from ludus.critic import FINAL as FINAL_CRITIC
from ludus.critic import Critic, load_critic
from ludus.envs.registry import make_env
from ludus.envs.signals import action_names
from ludus.evaluation import evaluate
from ludus.playing import extremes, play_episode
from ludus.policy import FINAL, Policy, load_policy
from ludus.report.episode import FOLDER as EPISODES
from ludus.report.episode import About, Episode, write_episode
from ludus.report.overlay import SCENE
from ludus.report.scenes import SCENES, Curves
from ludus.report.video import (
    Pictures,
    Tile,
    about_episode,
    episode_frames,
    grid_frames,
    rows_of,
    tile_size,
    write_film,
)
from ludus.resume import learned_at, untrained
from ludus.run_config import environment_in
from ludus.spaces import flatten, unflatten
from ludus.tracking.run_folder import JOURNAL, read_config, read_identity, read_journal
from ludus.types import LudusError

FOLDER = "videos"
POLICIES = "policies"
MOST_TILES = 12
Say = Callable[[str], None]


@dataclass(frozen=True)
class Chosen:
    """A policy of a run, and what is known of it."""

    policy: Policy
    critic: Critic | None
    label: str
    steps: int | None = None
    iteration: int | None = None

    def about(self, config: dict[str, Any]) -> About:
        """Return the beginning of an episode's header."""
        algorithm = config.get("algorithm")
        name = str(algorithm.get("name", "")) if isinstance(algorithm, dict) else ""
        return About(self.policy.env_id, self.label, algorithm=name, steps=self.steps, iteration=self.iteration)


def choose(run: Path, checkpoint: str | None = None) -> Chosen:
    """Return a policy of a run.

    Args:
        run: the run folder.
        checkpoint: "latest", "best" or the step of a checkpoint, or the name of a file in the run's `policies/`; None
            is the final policy or, while there is none, the latest checkpoint.
    """
    policies = _policies(run)
    if checkpoint is None and FINAL.stem not in policies:
        checkpoint = "latest"
    if checkpoint in (None, "final", FINAL.stem):
        critic = load_critic(run) if (run / FINAL_CRITIC).is_file() else None
        identity = read_identity(run)
        return Chosen(load_policy(run), critic, "final", *_counts(identity))
    if checkpoint in policies:
        return Chosen(load_policy(policies[checkpoint]), None, checkpoint, *_when(run, checkpoint))
    steps = Checkpoints(run).steps()
    if not steps or (checkpoint not in ("latest", "best") and checkpoint not in map(str, steps)):
        known = [*(["latest", "best"] if steps else []), *map(str, steps), "final", *policies]
        raise LudusError(f"{run}: no checkpoint {checkpoint}; there are {', '.join(dict.fromkeys(known))}")
    policy, critic, record = learned_at(run, str(checkpoint))
    label = "best" if checkpoint == "best" else str(record["steps"])
    return Chosen(policy, critic, label, record["steps"], record["iteration"])


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
        made: list[Path] = []
        for name, index in wanted.items():
            episode = play_episode(
                chosen.policy, env, chosen.critic, seed=seed, index=index, about=chosen.about(config)
            )
            made += keep(run, name, episode, env, gif, say)
        return made
    finally:
        env.close()


def keep(run: Path, name: str, episode: Episode, env: Any, gif: bool, say: Say) -> list[Path]:
    """Write an episode, then its film: if that fails, the episode is there."""
    path = run / EPISODES / f"{name}.safetensors"
    write_episode(episode, path)
    made = [path, *film_episode(episode, run / FOLDER / f"{name}.mp4", env, gif=gif, say=say)]
    for file in made[1:]:
        if file.suffix != ".jsonl":
            say(f"{file}: {len(episode):,} steps, return {episode.arrays['return'][-1]:.2f}")
    return made


def film_episode(episode: Episode, path: Path, env: Any, *, gif: bool = False, say: Say = print) -> list[Path]:
    """Make the film of an episode and return its files; `env` is what it was played in."""
    pictures, rate, note = pictures_of(episode, env, SCENE, say)
    frames = episode_frames(episode, pictures, rate, action_names(episode.about.env), note)
    try:
        return write_film(path, frames, rate, about_episode(episode), gif)
    except LudusError:
        raise
    except Exception as error:  # whatever an environment raises while it draws itself
        raise LudusError(f"{path}: {episode.about.env} could not be drawn ({_line(error)})") from error


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
        stages = list(_stages(run))
        for chosen in stages:
            episode = play_episode(
                chosen.policy, env, chosen.critic, seed=seed, index=index, about=chosen.about(config)
            )
            made.append(run / EPISODES / f"{chosen.label}.safetensors")
            write_episode(episode, made[-1])
            pictures, rate, _ = pictures_of(episode, env, tile_size(len(stages)), say)
            trained = f"{chosen.steps:,} steps" if chosen.steps is not None else ""
            name = "" if chosen.label.isdigit() else chosen.label
            tiles.append(Tile(episode, pictures, " · ".join(filter(None, [name, trained]))))
            say(f"{tiles[-1].title}: {len(episode):,} steps played, return {episode.arrays['return'][-1]:.2f}")
        about = {"tiles": [about_episode(tile.episode) for tile in tiles]}
        films = write_film(run / FOLDER / "grid.mp4", grid_frames(tiles, rate), rate, about, gif)
    finally:
        env.close()
    say(f"{films[0]}: {len(tiles)} policies side by side")
    return made + films


def _stages(run: Path) -> Iterator[Chosen]:
    """Yield the policies of a run in the order in which they were learnt; of those at the same step, one."""
    yield Chosen(untrained(run), None, "untrained", 0, 0)
    by_step: dict[int, Callable[[], Chosen]] = {
        step: partial(choose, run, str(step)) for step in Checkpoints(run).steps()
    }
    for name in _policies(run):
        steps = None if name == FINAL.stem else _when(run, name)[0]
        if steps:  # a policy with a name rather than the checkpoint of the same step
            by_step[steps] = partial(choose, run, name)
    last = choose(run)
    found = sorted(step for step in by_step if last.steps is None or step < last.steps)
    if len(found) > MOST_TILES - 2:
        found = [found[i] for i in np.linspace(0, len(found) - 1, MOST_TILES - 2).round().astype(int)]
    for step in found:
        yield by_step[step]()
    yield last


def _policies(run: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted((run / POLICIES).glob("*.safetensors")) if "critic" not in path.stem}


def _counts(row: dict[str, Any]) -> tuple[int | None, int | None]:
    steps, iteration = row.get("steps"), row.get("iteration")
    return (steps if isinstance(steps, int) else None), (iteration if isinstance(iteration, int) else None)


def _when(run: Path, name: str) -> tuple[int | None, int | None]:
    """Return the steps and iterations after which a policy with a name was saved, as far as the journal tells."""
    try:
        journal, config = _journal(run, (run / JOURNAL).stat().st_mtime_ns), read_config(run)
    except (OSError, LudusError):
        return None, None
    if name == "best_pi_ckpt" and isinstance(best := read_identity(run).get("best"), dict):
        rows = (row for row in journal if row.get("kind") == "train" and row.get("steps") == best.get("steps"))
        return _counts(next(rows, {}))
    if name == "best_eval_pi_ckpt":
        evaluations = [row for row in journal if isinstance(row.get("eval_return_mean"), int | float)]
        return _counts(max(evaluations, key=lambda row: row["eval_return_mean"], default={}))
    number, total, count = name.removeprefix("pi_ckpt"), config.get("total_steps"), config.get("num_checkpoints")
    if not number.isdigit() or not isinstance(total, int) or not isinstance(count, int):
        return None, None
    milestone = -(-total * int(number) // (count + 1))
    rows = (row for row in journal if row.get("kind") == "train" and row.get("steps", 0) >= milestone)
    return _counts(next(rows, {}))


@lru_cache(maxsize=1)
def _journal(run: Path, written: int) -> list[dict[str, Any]]:
    """Read a journal; once for as long as nothing is written to it."""
    return read_journal(run)


def _environment(config: dict[str, Any], lanes: bool = False) -> Any:
    """Make the environment of a run in this process; what EnvPool played is played by Gymnasium, which can draw."""
    drawable = {
        "env": str(config.get("env")).replace("envpool:", "gym:", 1),
        "env_options": config.get("env_options"),
        "env_wrappers": config.get("env_wrappers"),
        "num_envs": config.get("num_envs") if lanes else 1,
    }
    return environment_in(drawable, "use ludus.filming.film_episode in Python")


def pictures_of(episode: Episode, env: Any, size: tuple[int, int], say: Say) -> tuple[Pictures, float, str]:
    """Return what makes the pictures of an episode, how many a second has, and what to say about them."""
    about = episode.about
    name = about.env.rpartition(":")[2]
    if about.env.startswith("jax:") and name in SCENES:
        scene = SCENES[name](size, about.env_options)
        return lambda every: _drawn(episode, scene, every), scene.frames_per_second, ""
    if getattr(env, "has_pictures", False):
        pictures = _replayed(episode, env)
        try:
            next(iter(pictures(1)))
        except Exception as error:  # whatever its libraries raise
            reason = f"it cannot be drawn ({_line(error)})"
        else:
            return pictures, env.frames_per_second, ""
    else:
        reason = "it has no pictures of itself"
    say(f"{about.env}: {reason}; the film shows its signals instead")
    return lambda every: _curves(episode, size, every), Curves.frames_per_second, "no picture"


def _drawn(episode: Episode, scene: Any, every: int) -> Iterator[np.ndarray]:
    for row in rows_of(episode, every)[:-1]:
        yield scene.draw(episode.arrays["obs"][row], episode.arrays["action"][row])
    yield scene.draw(episode.arrays["final_obs"][0], None)


def _curves(episode: Episode, size: tuple[int, int], every: int) -> Iterator[np.ndarray]:
    curves = Curves(size, episode.signals, episode.about.units)
    for row in rows_of(episode, every):
        yield curves.draw(min(row, len(episode) - 1))


def _replayed(episode: Episode, env: Any) -> Pictures:
    """Return pictures of a Gymnasium episode that is played once more, by its seed and actions."""
    camera = _camera(env)
    action = unflatten(env.action_space, list(episode.tree("action").values()))
    recorded, final = list(episode.tree("obs").values()), list(episode.tree("final_obs").values())

    def pictures(every: int) -> Iterator[np.ndarray]:
        for t, obs, picture in camera.film(episode.about.env_seed, action, every):
            expected = [x[t] for x in recorded] if t < len(episode) else [x[0] for x in final]
            for part, told in zip(flatten(env.observation_space, obs), expected, strict=True):
                if not np.array_equal(np.asarray(part, told.dtype), told, equal_nan=told.dtype.kind == "f"):
                    raise LudusError(f"{episode.about.env}: does not repeat itself (step {t}); it cannot be filmed")
            if isinstance(picture, np.ndarray) and picture.ndim == 3:
                yield np.ascontiguousarray(picture[..., :3], np.uint8)
            elif t % every == 0 or t == len(episode):
                raise TypeError(f"render() returned {type(picture).__name__}")

    return pictures


def _camera(env: Any) -> Any:
    """Return the environment made anew so that it draws itself."""
    if env.id.startswith("object:"):
        return env  # the user's own: made with render_mode="rgb_array" or not
    options: dict[str, Any] = {**dict(env.options), "render_mode": "rgb_array"}
    return make_env(env.id, 1, env_wrappers=getattr(env, "env_wrappers", ()), **options)


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def headless() -> None:
    """Tell SDL, which draws many of Gymnasium's environments, that there is no screen; call it before they are made."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")


def main(arguments: list[str] | None = None) -> int:
    """Film one saved policy of a run that is going on; end when whoever asked for it ends."""
    parser = argparse.ArgumentParser(prog="python -m ludus.filming")
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
        chosen = Chosen(load_policy(given.policy), critic, str(given.steps), given.steps, given.iteration)
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
