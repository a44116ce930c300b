"""Questions on the live page: what is told of them, how they are drawn, and where answers go."""

import io
import json

import numpy as np
import pytest
from PIL import Image
from run_folders import learning_rows, make_run, write_questions
from watch_server import serving

from ludus.report.live import run_questions
from ludus.report.live.run_questions import RunQuestions
from ludus.report.video.clip import SIZE, Segment, rate_of, strip
from ludus.runs.questions import ANSWERED, SEGMENTS
from ludus.runtime.preference_file import read_preferences
from ludus.types import LudusError

pytestmark = pytest.mark.requirement("S0.20")


def frames(png: bytes) -> np.ndarray:
    """Return the strip as `[frame, side, height, breadth, 3]`."""
    pixels = np.asarray(Image.open(io.BytesIO(png)))
    return pixels.reshape(-1, SIZE[1], 2, SIZE[0], 3).swapaxes(1, 2)


def test_questions_are_told_answered_and_answered_anew(tmp_path):
    run = make_run(tmp_path / "run")
    questions = RunQuestions(run)
    assert questions.state() is None
    segments = write_questions(run, 3)
    assert questions.state() == {"count": 3, "waiting": 3, "open": [0, 1, 2], "problem": None}
    clip = questions.clip(1)
    assert [curve["name"] for curve in clip["curves"]] == ["obs[0]", "obs[1]", "obs[2]", "action"]
    shown = np.array([curve["values"] for curve in clip["curves"][:3]])  # [3, side, steps]
    np.testing.assert_allclose(shown.transpose(1, 2, 0).reshape(-1, 3), segments.obs[16:32], rtol=1e-4, atol=1e-6)
    assert clip["curves"][0]["low"] == pytest.approx(segments.obs[16:32, 0].min())
    assert (clip["number"], clip["steps"], clip["every"], clip["rate"]) == (1, 8, 1, 30)
    after = questions.answer(1, "second")
    assert after is not None and after["open"] == [0, 2] and after["waiting"] == 2
    questions.answer(0, "first")
    questions.answer(1, "equal")
    found = read_preferences(run / ANSWERED, 6)
    assert found.first.tolist() == [2, 0, 2] and found.second.tolist() == [3, 1, 3]
    assert found.label.tolist() == [0.0, 1.0, 0.5]
    for number in (-1, 3):
        with pytest.raises(LudusError, match="no such question"):
            questions.answer(number, "first")
    write_questions(tmp_path / "more", 2)  # the run has asked again
    (tmp_path / "more" / SEGMENTS / "000000.safetensors").rename(run / SEGMENTS / "000003.safetensors")
    assert questions.state()["open"] == [2, 3, 4]


def test_long_segments_are_shown_with_fewer_points_and_wide_ones_with_fewer_curves(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    write_questions(run, 1, steps=250)
    monkeypatch.setattr(run_questions, "MOST_SIGNALS", 3)
    clip = RunQuestions(run).clip(0)
    assert (clip["every"], clip["more"], len(clip["curves"])) == (3, 1, 3)
    assert {len(values) for curve in clip["curves"] for values in curve["values"]} == {84}
    assert len(frames(RunQuestions(run).picture(0) or b"")) == 84


def test_native_environments_are_drawn_from_what_was_observed(tmp_path):
    run = make_run(tmp_path / "run")
    segments = write_questions(run, 2)
    drawn = frames(RunQuestions(run).picture(1) or b"")
    assert drawn.shape[:2] == (8, 2)
    first, second = (Segment(segments.obs[a : a + 8], segments.action[a : a + 8]) for a in (16, 24))
    np.testing.assert_array_equal(frames(strip("Pendulum-v1", second, first, 1) or b"")[:, ::-1], drawn)
    assert not (drawn[0, 0] == drawn[-1, 0]).all() and not (drawn[0, 0] == drawn[0, 1]).all()
    assert rate_of("gym:CartPole-v1") == 50 and rate_of("Hopper-v5") == 30


def test_observed_pictures_are_shown_the_newest_of_a_stack(tmp_path):
    obs = np.zeros((2, 100, 100, 4), np.uint8)
    obs[..., 3] = 200
    segment = Segment(obs, np.zeros(2, np.int64))
    drawn = frames(strip("ALE/Pong-v5", segment, segment, 1) or b"")
    assert (drawn[:, :, 100, 150] == 200).all()


def test_what_cannot_be_drawn_has_no_picture(tmp_path):
    segment = Segment(np.zeros((4, 3), np.float32), np.zeros((4, 1), np.float32))
    assert strip("gym:Hopper-v5", segment, segment, 1) is None
    odd = Segment(np.zeros((4, 1), np.float32), np.zeros((4, 1), np.float32))
    assert strip("Pendulum-v1", segment, odd, 1) is None  # another environment of that name
    for value in (np.nan, 1e30):
        wild = Segment(np.full((4, 3), value, np.float32), segment.action)
        assert strip("Pendulum-v1", wild, segment, 1) is None
    run = make_run(tmp_path / "run")
    write_questions(run, 1, env="gym:Hopper-v5")
    assert RunQuestions(run).picture(0) is None and len(RunQuestions(run).clip(0)["curves"]) == 4


@pytest.mark.parametrize("how", ["linked folder", "linked file", "pipe", "too large", "damaged"])
def test_folders_of_strangers_are_refused(tmp_path, monkeypatch, how):
    outside, run = make_run(tmp_path / "outside"), make_run(tmp_path / "run")
    write_questions(outside, 1)
    here, there = run / SEGMENTS, outside / SEGMENTS
    if how == "linked folder":
        here.parent.mkdir()
        here.symlink_to(there)
    else:
        write_questions(run, 1)
    if how == "linked file":
        (here / "000001.safetensors").symlink_to(there / "000000.safetensors")
    elif how == "pipe":
        import os

        os.mkfifo(here / "000001.safetensors")
    elif how == "too large":
        monkeypatch.setattr(run_questions, "MOST_BYTES", 100)
    elif how == "damaged":
        (here / "000000.safetensors").write_bytes(b"no")
    questions = RunQuestions(run)
    state = questions.state()
    assert state is None or (state["open"] == [] and state["problem"])
    with pytest.raises(LudusError):
        questions.clip(0)
    with pytest.raises(LudusError):
        questions.answer(0, "first")
    assert not (run / ANSWERED).exists()


def test_the_page_asks_and_stores_through_its_server(tmp_path):
    run = make_run(tmp_path / "run", learning_rows(4))
    write_questions(run, 2)
    with serving(tmp_path) as served:
        (key,) = served.server.page.index.runs
        told = served.ask(served.head("GET", f"/events?run={key}"), most=20_000, seconds=1.0).body
        assert b'"questions":{"count":2,"waiting":2,"open":[0,1],"problem":null}' in told
        clip = json.loads(served.ask(served.head("GET", f"/runs/{key}/questions/1")).body)
        assert clip["number"] == 1 and clip["count"] == 2
        picture = served.ask(served.head("GET", f"/runs/{key}/questions/1/picture"))
        assert "image/png" in picture.head and frames(picture.body).shape[:2] == (8, 2)
        answered = served.ask(served.head("POST", f"/runs/{key}/questions/1/second"))
        assert answered.status == 200 and json.loads(answered.body)["open"] == [0]
        (run / ANSWERED).unlink()
        (run / ANSWERED).symlink_to(tmp_path / "elsewhere")
        refused = served.ask(served.head("POST", f"/runs/{key}/questions/1/second"))
        assert refused.status == 409 and b"is a link" in refused.body
        assert not (tmp_path / "elsewhere").exists()
