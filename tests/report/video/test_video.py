"""Films: every frame is there, and the numbers on it are those that were recorded."""

import films
import numpy as np
import pytest
from PIL import Image

from ludus.report.video import draw
from ludus.report.video.encode import Tile, about_episode, episode_frames, fit, grid_frames, rows_of, write_film
from ludus.report.video.overlay import SCENE, SIZE, Overlay
from ludus.report.video.scenes import SCENES, Curves
from ludus.runs.episode_file import About, Episode
from ludus.types import LudusError

pytestmark = pytest.mark.slow

RATE = 25.0


def pictures(episode, size=SCENE):
    """One flat colour for each row, which a decoded film can be asked for."""
    return lambda every: (np.full((size[1], size[0], 3), 40 + 5 * row, np.uint8) for row in rows_of(episode, every))


@pytest.mark.requirement("S4.23", "S4.24")
def test_a_film_that_is_decoded_again_has_every_frame_and_every_number(tmp_path):
    episode = films.made()
    frames = episode_frames(episode, pictures(episode), RATE)
    made = write_film(tmp_path / "videos" / "a.mp4", frames, RATE, about_episode(episode))
    assert [path.name for path in made] == ["a.mp4", "a.jsonl"]
    header, lines = films.side(made[0])
    seen = films.watch(made[0])
    assert len(seen) == len(lines) == len(episode) + round(RATE)
    assert {picture.shape for picture in seen} == {(SIZE[1], SIZE[0], 3)} and header["size"] == list(SIZE)
    films.assert_drawn_is_recorded(episode, lines)
    for picture, line in zip(seen, lines, strict=True):
        assert np.abs(picture[300, 300].astype(int) - (40 + 5 * line["picture"])).max() <= 4
    assert header["episode"]["label"] == "final" and header["rate"] == RATE
    assert all(path.stat().st_mode & 0o077 == 0 for path in made)
    assert sorted(path.name for path in (tmp_path / "videos").iterdir()) == ["a.jsonl", "a.mp4"]


@pytest.mark.requirement("S4.24")
@pytest.mark.parametrize("kind", ["bars", "cells", "many components", "many signals", "little is known"])
def test_what_is_written_on_the_frame_is_what_the_side_file_says(kind):
    made = {
        "bars": {},
        "cells": {"discrete": True},
        "many components": {"components": 17},
        "many signals": {"signals": 40},
        "little is known": {"signals": 0},
    }[kind]
    episode = films.made(**made)
    if kind == "little is known":
        arrays = {name: x for name, x in episode.arrays.items() if name not in ("value", "entropy")}
        episode = Episode(About("jax:X", discrete=(False, False)), arrays)
    overlay = Overlay(episode)
    for row in (0, 17, 3, len(episode) - 1):
        overlay.scene[:] = 7
        shown = overlay.draw(row)["shown"]
        assert (overlay.scene == 7).all(), "nothing covers the scene"
        for name, field in [*overlay.fields.items(), *overlay.signal_fields.items()]:
            text = draw.sprite(shown[name], field.size, field.color, field.ground)
            place = overlay.canvas[field.y : field.y + text.shape[0], field.x : field.x + field.room]
            at = field.room - text.shape[1] if field.right else 0
            assert text.shape[1] <= field.room, f"{name} has not room enough"
            np.testing.assert_array_equal(place[:, at : at + text.shape[1]], text)
            rest = np.delete(place, np.s_[at : at + text.shape[1]], axis=1)
            assert (rest == np.array(field.ground)).all(), "nothing of what was there before is left"


def test_drawing_does_not_depend_on_what_was_drawn_before():
    episode = films.made(discrete=True)
    straight, there_and_back = Overlay(episode, ("a", "b", "c")), Overlay(episode, ("a", "b", "c"))
    for overlay in (straight, there_and_back):
        overlay.scene[:] = 0
    for row in (29, 0, 11):
        there_and_back.draw(row)
    straight.draw(11)
    np.testing.assert_array_equal(straight.canvas, there_and_back.canvas)


def test_the_chosen_action_is_lit_and_bars_are_as_long_as_their_numbers():
    choice = films.made(discrete=True)
    overlay = Overlay(choice, ("left", "none", "right"))
    for row in range(5):
        overlay.draw(row)
        lit = [(overlay.canvas[overlay.cells_y + 1, x + 1] == np.array(draw.BLUE)).all() for _, _, x in overlay.cells]
        assert np.flatnonzero(lit).tolist() == [choice.arrays["action"][row]]
    numbers = films.made()
    overlay = Overlay(numbers)
    overlay.draw(4)
    for bar, value in zip(overlay.bars, numbers.actions[4], strict=True):
        pixels = overlay.canvas[bar.y + 8, bar.left : bar.right]
        color = draw.GREEN if value > 0 else draw.RED
        length = (pixels == np.array(color)).all(axis=1).sum()
        assert abs(length - abs(value) * (bar.right - bar.left) / 2) <= 1.5


def test_a_trace_goes_through_its_points_and_no_further_than_now():
    series = np.array([0.0, 1.0, 0.25, 0.75, 0.5])
    trace = draw.Trace(series, (0, 0, 107, 58), draw.BLUE, draw.NIGHT)
    canvas = np.zeros((58, 107, 3), np.uint8)
    trace.show(canvas, 2)
    bluish = canvas[..., 2].astype(int) - canvas[..., 0] > 60
    assert not bluish[:, trace.at[2] + 5 :].any() and bluish[:, : trace.at[2] - 5].any(axis=0).mean() > 0.9
    assert (trace.at[0], trace.at[-1]) == (3, 103) and trace.over[1] == 4 and trace.over[0] == 54
    trace.show(canvas, 4)
    assert (canvas[..., 2].astype(int) - canvas[..., 0] > 60)[:, trace.at[3]].any()


@pytest.mark.parametrize("series", [[1.0], [2.0, 2.0], [np.nan, 1.0, 2.0], [np.nan], [1e30, -1e30, np.inf]])
def test_traces_of_odd_series_are_drawn(series):
    trace = draw.Trace(np.array(series), (0, 0, 60, 40), draw.BLUE, draw.NIGHT)
    canvas = np.zeros((40, 60, 3), np.uint8)
    for row in range(len(series)):
        trace.show(canvas, row)


def test_numbers_that_are_none_are_null_in_the_side_file():
    episode = films.made()
    episode.arrays["value"][3] = np.nan
    drawn = Overlay(episode).draw(3)
    assert drawn["value"] is None and drawn["shown"]["value"] == "nan"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (-0.001, "0.00"), (-1.236, "-1.24"), (999.5, "999.50"), (1234.56, "1234.6"), (-54321.4, "-54321"),
     (1.5e8, "1.5e+08"), (float("inf"), "inf")],
)  # fmt: skip
def test_numbers_are_written_for_people(value, text):
    assert draw.format_number(value) == text


def test_long_names_are_cut_where_the_room_ends():
    assert draw.shortened("short", 12, 200) == "short"
    cut = draw.shortened("a name that is far too long for the place where it stands", 12, 100)
    assert cut.endswith("…") and draw.text_width(cut, 12) <= 100


@pytest.mark.requirement("S1.35")
def test_a_gif_shows_the_same_smaller_and_slower(tmp_path):
    episode = films.made()
    frames = episode_frames(episode, pictures(episode), 50.0)
    path = write_film(tmp_path / "a.mp4", frames, 50.0, {}, gif=True)[-1]
    with Image.open(path) as image:
        assert path.suffix == ".gif" and image.width == 640 and image.n_frames <= 15 + 25
        duration = 0
        for index in range(image.n_frames):
            image.seek(index)
            duration += image.info["duration"]
        assert duration == 1000 * (15 + 25) / 25
        image.seek(5)
        assert np.abs(np.asarray(image.convert("RGB"))[200, 200].astype(int) - (40 + 5 * 10)).max() <= 12


def test_tiles_end_one_by_one_and_stay(tmp_path):
    long, brief = films.made(steps=20, truncated=True), films.made(steps=6, terminated=True, label="pi_ckpt1")
    tiles = [Tile(episode, pictures(episode, (300, 200)), episode.about.label) for episode in (brief, long)]
    path, _ = write_film(tmp_path / "grid.mp4", grid_frames(tiles, 10.0), 10.0, {})
    _, lines = films.side(path)
    assert len(films.watch(path)) == len(lines) == 20 + 1 + 10
    for count, line in enumerate(lines):
        for tile, episode in zip(line["tiles"], (brief, long), strict=True):
            row = min(count, len(episode) - 1)
            assert tile["row"] == row and np.float32(tile["return"]) == episode.arrays["return"][row]
            assert tile["is_over"] == (count >= len(episode)) and tile["label"] == episode.about.label


@pytest.mark.parametrize("count", range(1, 13))
def test_any_number_of_tiles_finds_its_place(count):
    episode = films.made(steps=2)
    frames = list(grid_frames([Tile(episode, pictures(episode), f"{i}") for i in range(count)], 1.0)(1))
    assert frames[0].pixels.shape[1] <= 1200 and len(frames[0].drawn["tiles"]) == count


def test_pictures_of_any_size_are_fitted_without_being_stretched():
    assert fit(np.zeros((400, 600, 3), np.uint8), SCENE).shape == (400, 600, 3)
    assert fit(np.zeros((500, 500, 3), np.uint8), SCENE).shape == (400, 400, 3)
    assert fit(np.zeros((210, 160, 3), np.uint8), (160, 105)).shape == (105, 80, 3)
    small = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    large = fit(small, SCENE)
    assert large.shape == (400, 400, 3) and (large[:200, :200] == small[0, 0]).all()


def test_a_film_that_fails_leaves_nothing_behind(tmp_path):
    def frames(every):
        yield next(episode_frames(films.made(), pictures(films.made()), RATE)(1))
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        write_film(tmp_path / "a.mp4", frames, RATE, {})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(LudusError, match="cannot be written"):
        write_film(tmp_path / "file" / "a.mp4", frames, RATE, {})


def where(picture, color):
    """The mean position of the pixels of a colour."""
    rows, columns = np.nonzero((picture == np.array(color)).all(axis=-1))
    return columns.mean(), rows.mean()


WOOD, INK = (217, 119, 6), (30, 41, 59)


def test_the_cart_is_where_it_is_and_the_pole_leans_as_it_does():
    scene = SCENES["CartPole-v1"](SCENE, {})
    for x, angle in ((0.0, 0.0), (1.5, 0.2), (-2.0, -0.2), (2.4, 0.1)):
        picture = scene.draw(np.array([x, 0, angle, 0]), 1)
        cart, pole = where(picture, INK), where(picture, WOOD)
        assert cart[0] == pytest.approx(300 + x * 600 / 5.6, abs=3)
        assert np.arctan2(pole[0] - cart[0], cart[1] - pole[1]) == pytest.approx(angle, abs=0.05)
    right, left = (scene.draw(np.zeros(4), action) for action in (1, 0))
    assert where(right, (37, 99, 235))[0] > 300 > where(left, (37, 99, 235))[0]
    assert not (scene.draw(np.zeros(4), None) == np.array((37, 99, 235))).all(axis=-1).any()


def test_the_pendulum_turns_as_gymnasiums_does():
    import gymnasium

    env = gymnasium.make("Pendulum-v1", render_mode="rgb_array", disable_env_checker=True)
    env.reset(seed=0)
    scene = SCENES["Pendulum-v1"]((500, 500), {})
    for angle in (0.0, 0.8, -2.0, 3.0):
        env.unwrapped.state, env.unwrapped.last_u = np.array([angle, 0.0]), None
        theirs = where(env.render(), (204, 77, 77))
        ours = where(scene.draw(np.array([np.cos(angle), np.sin(angle), 0.0]), None), WOOD)
        directions = [np.arctan2(x - 250, 250 - y) for x, y in (theirs, ours)]
        assert np.cos(directions[0] - directions[1]) > 0.99
    env.close()


def test_the_acrobat_hangs_and_the_car_stands_where_they_are():
    acrobot = SCENES["Acrobot-v1"](SCENE, {})
    x, y = where(acrobot.draw(np.array([0.0, 1.0, 1.0, 0.0, 0, 0]), 1), WOOD)  # stretched out to the right
    assert x == pytest.approx(300 + 1.5 * 400 / 4.7, abs=12) and y == pytest.approx(200, abs=4)
    car = SCENES["MountainCar-v0"](SCENE, {})
    for position in (-1.1, -0.5, 0.4):
        x, y = where(car.draw(np.array([position, 0.0]), 1), INK)
        height = 0.45 * np.sin(3 * position) + 0.55
        assert x == pytest.approx(393 + position * 600 / 1.9, abs=40)
        assert y == pytest.approx(372 - height * 600 / 1.9 - 25, abs=25)
    for name, action in (("MountainCar-v0", 2), ("MountainCarContinuous-v0", np.array([0.7]))):
        picture = SCENES[name](SCENE, {}).draw(np.array([-0.5, 0.0]), action)
        assert (picture == np.array((37, 99, 235))).all(axis=-1).any()


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("size", [SCENE, (390, 260), (36, 24)])
def test_scenes_of_any_size_are_drawn_wherever_things_are(name, size):
    scene = SCENES[name](size, {})
    rng = np.random.default_rng(0)
    for obs in (np.full(6, 50.0), np.full(6, -50.0), rng.normal(size=6), np.zeros(6)):
        action = np.array([0.5]) if name in ("Pendulum-v1", "MountainCarContinuous-v0") else 0
        assert scene.draw(obs, action).shape == (size[1], size[0], 3)


@pytest.mark.parametrize("count", [0, 1, 3, 8, 30])
def test_without_a_picture_the_signals_are_shown_as_curves(count):
    episode = films.made(signals=count)
    curves = Curves(SCENE, episode.signals, episode.about.units)
    first, last = curves.draw(0).copy(), curves.draw(len(episode) - 1).copy()
    assert first.shape == (SCENE[1], SCENE[0], 3)
    assert count == 0 or (first != last).any()
