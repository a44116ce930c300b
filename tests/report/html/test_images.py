"""The pictures that users know by name, and figures of recorded episodes."""

import io
import re
import stat
from pathlib import PurePath

import numpy as np
import pytest
from PIL import Image
from places import DOCS
from run_folders import evaluation_row, full_rows, learning_rows, make_run, unpacked

from ludus.cli import main as cli
from ludus.report.comparison import compared
from ludus.report.figures import behaviour, several, single
from ludus.report.html import images
from ludus.report.html.make import make_report
from ludus.runs.episode_file import About, Episode, write_episode
from ludus.runs.summary import Story
from ludus.types import LudusError

pytestmark = pytest.mark.slow

needs_chromium = pytest.mark.skipif(images.find_browser() is None, reason="no Chromium here (apt-get install chromium)")


@pytest.mark.requirement("S1.25")
def test_every_named_picture_has_its_panels(tmp_path):
    """Whatever a user of the documents looks for is there, made of panels that are drawn."""
    run = Story.read(make_run(tmp_path / "run", full_rows(60)))
    found = images.documents(single.draw(run), 61_440)
    sweep = [make_run(tmp_path / str(g), [evaluation_row(1, g)], gamma=g) for g in (0.9, 0.99)]
    found |= images.documents(several.draw(compared(list(map(Story.read, sweep)))), 1024)
    assert set(found) == {
        "episode_progress/step_61440", "loss_curves/step_61440", "gradient_flow/step_61440",
        "kl_divergence/step_61440", "learning_analysis/advanced_learning_curves",
        "stability_analysis/training_stability", "training_curves/training_progress",
        "comprehensive_analysis/episode_statistics", "comprehensive_analysis/training_summary",
        "policy_analysis/policy_distribution_step_61440", "hyperparameter_analysis/hyperparameter_heatmap_final_return",
        "episode_returns", "success_rates", "rollout_returns",
    }  # fmt: skip
    assert [panel.key for panel in found["stability_analysis/training_stability"]] == [
        "rolling_mean", "rolling_std", "variation", "share",
    ]  # fmt: skip
    assert [panel.key for panel in found["loss_curves/step_61440"]] == ["policy_loss", "value_loss", "total_loss"]


def test_the_docs_name_every_picture_and_every_figure(tmp_path):
    page = (DOCS / "report.md").read_text()
    for name in images.DOCUMENTS:
        assert f"`{name.format(steps='<steps>')}.png`" in page
    run = make_run(tmp_path / "run", full_rows(60))
    record(run, "final", 1000)
    for figure in make_report([run]).figures:
        assert re.search(rf"^\|.*\b{figure.title}\b", page, re.MULTILINE), figure.title


@needs_chromium
@pytest.mark.requirement("S1.25")
def test_pictures_are_drawn_and_put_together(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "run", learning_rows(40))
    assert cli.main(["report", "run"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and re.search(r"^\d+ figures as PNG in run/report/figures$", out, re.MULTILINE)
    path = tmp_path / "run/report/figures/kl_divergence/step_40960.png"
    picture = np.asarray(Image.open(path).convert("RGB"))
    assert picture.shape == (630, 2160, 3)
    for half in (picture[:, :1080], picture[:, 1080:]):
        assert len(np.unique(half.reshape(-1, 3), axis=0)) > 50  # something is drawn on either
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.requirement("S1.25")
def test_without_a_browser_matplotlib_draws_every_panel(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "find_browser", lambda: None)
    run = make_run(tmp_path / "run", full_rows(30))
    record(run, "final", 1000)
    sweep = [make_run(tmp_path / str(g), [evaluation_row(1, g)], gamma=g) for g in (0.9, 0.99)]
    drawn = [*make_report([run]).figures, *several.draw(compared(list(map(Story.read, sweep))))]
    panels = [panel for figure in drawn for panel in figure.panels]
    made = images.painter()(panels)
    assert made.keys() == {panel.key for panel in panels} and len(made) > 30
    sizes = {Image.open(io.BytesIO(picture)).size for picture in made.values()}
    assert sizes == {(648, 378)}
    blank = images.painter()([panels[0].__class__("blank", "", [])])["blank"]
    for panel in panels:
        if panel.traces:
            assert made[panel.key] != blank


@pytest.mark.requirement("S1.25")
def test_pictures_have_the_same_names_in_mlflow():
    from ludus.runs.trackers.mlflow.sender import place_of

    known = {
        "report/figures/kl_divergence/step_5.png": "kl_divergence",
        "report/figures/episode_returns.png": "",
        "report/index.html": "report",
        "report/performance_report.json": "performance_analysis",
        "policies/final_actor.safetensors": "policies",
        "config.yaml": "",
    }
    assert {path: place_of(PurePath(path)) for path in known} == known


def test_without_chromium_one_line_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(images, "find_browser", lambda: None)
    monkeypatch.setattr(images.importlib.util, "find_spec", lambda name: None)
    make_run(tmp_path / "run", learning_rows(20))
    assert cli.main(["report", "run"]) == 0
    out, err = capsys.readouterr()
    assert out == "run/report/index.html\n"
    assert re.fullmatch("ludus: no figures as PNG: there is no Chromium here .*\n", err)


@pytest.mark.parametrize("script", ["exit 1", "echo nonsense", 'echo \'<pre id="images">{"a": 1}</pre>\'', "sleep 60"])
def test_a_chromium_that_fails_is_one_line(tmp_path, monkeypatch, script):
    browser = tmp_path / "chromium"
    browser.write_text(f"#!/bin/sh\n{script}\n")
    browser.chmod(0o700)
    monkeypatch.setattr(images, "find_browser", lambda: str(browser))
    monkeypatch.setattr(images, "SECONDS", 1)
    report = make_report([make_run(tmp_path / "run", learning_rows(20))])
    with pytest.raises(LudusError, match="draw the figures"):
        report.write_images()


def test_a_mosaic_has_rows_of_two():
    def tile(colour: str) -> bytes:
        out = io.BytesIO()
        Image.new("RGB", (30, 20), colour).save(out, "PNG")
        return out.getvalue()

    made = np.asarray(Image.open(io.BytesIO(images.mosaic([tile("red"), tile("lime"), tile("blue")]))))
    assert made.shape == (40, 60, 3)
    assert [made[y, x].tolist() for y, x in ((5, 5), (5, 35), (25, 5), (25, 35))] == [
        [255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255],
    ]  # fmt: skip


# --- recorded episodes ---


def record(run, label: str, steps: int, length: int = 50, signals=("hip", "hull velocity")) -> Episode:
    random = np.random.default_rng(steps)
    arrays = {name: random.normal(size=length).astype(np.float32) for name in ("reward", "value", "entropy")}
    arrays |= {f"signal/{name}": random.normal(size=length).astype(np.float32) for name in signals}
    arrays |= {"return": np.cumsum(arrays["reward"], dtype=np.float32), "final_value": np.ones(1, np.float32)}
    arrays |= {"action": random.normal(size=(length, 2)).astype(np.float32)}
    units = dict.fromkeys(signals, "rad")
    episode = Episode(
        About("gym:BipedalWalker-v3", label, steps=steps, gamma=0.9, terminated=True, units=units), arrays
    )
    write_episode(episode, run / "episodes" / f"{label}.safetensors")
    return episode


@pytest.mark.requirement("S4.19")
@pytest.mark.requirement("S4.20")
@pytest.mark.requirement("S4.22")
def test_signals_of_checkpoints_are_drawn_over_each_other(tmp_path):
    run = make_run(tmp_path / "run", learning_rows(20))
    recorded = {
        label: record(run, label, steps) for label, steps in (("best", 3000), ("first", 1000), ("second", 2000))
    }
    (run / "episodes" / "damaged.safetensors").write_bytes(b"nonsense")
    calibration, signals = behaviour.draw(Story.read(run))
    panels = {panel.key: panel for panel in signals.panels}
    assert list(panels) == ["return", "signal/hip", "signal/hull velocity"]
    assert panels["signal/hip"].y == "rad"
    for panel in signals.panels:
        assert [trace["meta"]["episode"] for trace in panel.traces] == ["first", "second", "best"]
        for trace in panel.traces:
            wanted = recorded[trace["meta"]["episode"]].arrays[panel.key]
            assert np.array_equal(unpacked(trace["y"]), wanted.astype(np.float64))
    dots = {trace["name"]: trace for trace in calibration.panels[0].traces}
    first = recorded["first"]
    assert np.array_equal(unpacked(dots["first (1,000 steps)"]["x"]), first.realised())
    assert np.array_equal(unpacked(dots["first (1,000 steps)"]["y"]), first.arrays["value"].astype(np.float64))
    assert {"calibration", "signals"} <= {figure.key for figure in make_report([run]).figures}


def test_of_many_episodes_a_few_are_drawn_and_it_is_said(tmp_path):
    run = make_run(tmp_path / "run", learning_rows(20))
    for i in range(10):
        record(run, f"{1000 * i}", 1000 * i)
    _, signals = behaviour.draw(Story.read(run))
    drawn = [trace["meta"]["episode"] for trace in signals.panels[0].traces]
    assert len(drawn) == behaviour.MOST_EPISODES and (drawn[0], drawn[-1]) == ("0", "9000")
    assert "4 more episodes are not drawn" in signals.about


def test_a_run_without_episodes_has_no_such_figures(tmp_path):
    assert behaviour.draw(Story.read(make_run(tmp_path / "run", learning_rows(20)))) == []
