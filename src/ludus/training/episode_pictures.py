"""The pictures of an episode: drawn from what was recorded, made by the environment itself, or curves of signals."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import numpy as np

from ludus.envs.base import AnyEnv
from ludus.envs.registry import make_env
from ludus.report.video.encode import Pictures, rows_of
from ludus.report.video.road_scene import RoadScene
from ludus.report.video.scenes import SCENES, Curves, Scene
from ludus.runs.episode_file import Episode
from ludus.spaces import flatten, unflatten
from ludus.types import LudusError, Tree

Say = Callable[[str], None]
ROAD_SCENES = ("driving",)
"""Environments whose pictures are drawn from where cars and lanes were."""


class Camera(Protocol):
    """An environment that plays an episode again and draws itself meanwhile, as Gymnasium's do."""

    frames_per_second: float

    def film(self, seed: int | None, actions: Tree, every: int) -> Iterator[tuple[int, Tree, Any]]:
        """Yield the number of each step, what is observed there, and every so many steps a picture."""
        ...


def pictures_of(episode: Episode, env: AnyEnv, size: tuple[int, int], say: Say) -> tuple[Pictures, float, str]:
    """Return what makes the pictures of an episode, how many a second has, and what to say about them."""
    about = episode.about
    name = about.env.rpartition(":")[2]
    if about.env.startswith("jax:") and name in SCENES:
        scene = SCENES[name](size, about.env_options)
        return lambda every: _drawn(episode, scene, every), scene.frames_per_second, ""
    if name in ROAD_SCENES and (rows := episode.tree("scene")):
        road = RoadScene(size, rows)
        return lambda every: (road.draw(row) for row in rows_of(episode, every)), RoadScene.frames_per_second, ""
    if env.has_pictures:
        try:
            pictures = _replayed(episode, env)
            next(iter(pictures(1)))
        except Exception as error:  # whatever its libraries raise
            reason = f"it cannot be drawn ({first_line(error)})"
        else:
            return pictures, cast(Camera, env).frames_per_second, ""
    else:
        reason = "it has no pictures of itself"
    say(f"{about.env}: {reason}; the film shows its signals instead")
    return lambda every: _curves(episode, size, every), Curves.frames_per_second, "no picture"


def _drawn(episode: Episode, scene: Scene, every: int) -> Iterator[np.ndarray]:
    for row in rows_of(episode, every)[:-1]:
        yield scene.draw(episode.arrays["obs"][row], episode.arrays["action"][row])
    yield scene.draw(episode.arrays["final_obs"][0], None)


def _curves(episode: Episode, size: tuple[int, int], every: int) -> Iterator[np.ndarray]:
    curves = Curves(size, episode.signals, episode.about.units)
    for row in rows_of(episode, every):
        yield curves.draw(min(row, len(episode) - 1))


def _replayed(episode: Episode, env: AnyEnv) -> Pictures:
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


def _camera(env: AnyEnv) -> Camera:
    """Return the environment made anew so that it draws itself."""
    if env.id.startswith("object:"):
        return cast(Camera, env)  # the user's own: made with render_mode="rgb_array" or not
    options: dict[str, Any] = {**dict(env.options), "render_mode": "rgb_array"}
    return cast(Camera, make_env(env.id, 1, env_wrappers=env.env_wrappers, **options))


def first_line(error: Exception) -> str:
    """Return the beginning of what an error says, or its name."""
    return (str(error) or type(error).__name__).splitlines()[0][:200]
