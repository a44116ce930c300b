"""The page in a real Chromium: it asks for nothing, says nothing to the console, and shows what the journal holds."""

import chromium
import numpy as np
import pytest
from run_folders import LAYERS, evaluation_row, full_rows, learning_rows, make_run, train_row

from ludus.report.html.make import make_report
from ludus.runs.summary import Story

pytestmark = [pytest.mark.slow, chromium.NEEDED]

NARROW = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
READ = """(id) => document.getElementById(id)._fullData.map((trace, i) => {
    const given = document.getElementById(id).data[i];
    return {meta: given.meta || null, x: Array.from(trace.x || []), y: Array.from(trace.y || [])};
})"""


class Visitor:
    """Opens pages; remembers what they say to the console and what they ask for."""

    def __init__(self, browser):
        self.browser, self.contexts, self.heard = browser, [], []

    def __call__(self, path, **options):
        context = self.browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: self.heard.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.heard.append(f"error: {error}"))
        page.on("request", lambda request: self.heard.append(request.url) if asks(request.url, path) else None)
        page.goto(path.resolve().as_uri())
        page.wait_for_selector("html[data-ready=true]", timeout=60_000)
        return page

    def leave(self) -> None:
        for context in self.contexts:
            context.close()
        assert self.heard == []


@pytest.fixture
def visit(browser):
    """Open a page; whatever it says to the console or asks for is held against it at the end."""
    visitor = Visitor(browser)
    yield visitor
    visitor.leave()


@pytest.fixture(scope="module")
def opened(browser, full):
    """The page of a run that journals everything, in light colours."""
    visitor = Visitor(browser)
    yield visitor(full[1], color_scheme="light")
    visitor.leave()


def film(path, width: int) -> None:
    """Write a film of ten frames."""
    import av

    path.parent.mkdir(exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = width, 48, "yuv420p"
        for i in range(10):
            frame = av.VideoFrame.from_ndarray(np.full((48, width, 3), 20 * i, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def until(page, expression: str) -> None:
    """Wait until something is so; the page's own policy forbids to leave the waiting to the browser."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never so: {expression}")


def asks(url: str, path) -> bool:
    return url != path.resolve().as_uri() and not url.startswith(("data:", "blob:"))


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A run that journals everything, and its page."""
    run = make_run(tmp_path_factory.mktemp("page") / "run", full_rows(120))
    film(run / "videos" / "pi_ckpt1.mp4", 32)
    film(run / "videos" / "final.mp4", 64)
    return run, make_report([run]).page


@pytest.mark.requirement("S4.21")
@pytest.mark.requirement("S4.22")
def test_every_panel_holds_what_the_journal_holds(opened, full):
    page, story = opened, Story.read(full[0])
    panels = page.evaluate("PANELS.map(panel => panel.id)")
    assert len(panels) > 30
    assert page.evaluate("document.querySelectorAll('.plot .main-svg').length") >= len(panels)
    seen = set()
    for panel in panels:
        for trace in page.evaluate(READ, panel):
            if not trace["meta"]:
                continue
            column = trace["meta"]["column"]
            table = story.evaluation if column.startswith("eval_") else story.train
            known = np.isfinite(table.column(column))
            assert trace["y"] == table.column(column)[known].tolist(), column
            assert trace["x"] == table.column("steps")[known].tolist(), column
            seen.add(column)
    norms = ("gradient", "update", "parameter")
    wanted = {f"{norm}_norm/{layer}" for norm in norms for layer in LAYERS} | {"approx_kl", "entropy", "value_loss"}
    assert wanted | {"eval_return_mean", "episode_return_mean", "success_rate", "learning_rate"} <= seen


def test_hovering_tells_the_value_and_the_legend_hides_a_curve(opened):
    page = opened
    plot = page.locator("#panel-returns")
    plot.scroll_into_view_if_needed()
    box = plot.locator(".nsewdrag").first.bounding_box()
    values = plot.locator(".hoverlayer .hovertext")
    at = page.evaluate(POINT, "panel-returns")
    page.mouse.move(box["x"] + at["x"] - 3, box["y"] + at["y"] - 3)
    page.mouse.move(box["x"] + at["x"], box["y"] + at["y"])
    until(page, "document.querySelectorAll('#panel-returns .hoverlayer .hovertext').length > 0")
    assert any(letter.isdigit() for letter in values.first.text_content())
    page.mouse.move(5, 5)
    plot.locator(".legendtoggle").nth(1).click()
    until(page, "document.getElementById('panel-returns')._fullData.some(trace => trace.visible === 'legendonly')")


def test_curves_can_be_drawn_over_time_and_episodes(visit, full):
    page, story = visit(full[1]), Story.read(full[0])
    for name, column in (
        ("wall-clock seconds", "elapsed_seconds"),
        ("episodes", "episodes"),
        ("environment steps", "steps"),
    ):
        page.select_option("#axis", name)
        until(page, f"document.getElementById('panel-elapsed_seconds').layout.xaxis.title.text === '{name}'")
        for panel, of in (("panel-entropy", "entropy"), ("panel-returns", "episode_return_mean")):
            [trace] = [trace for trace in page.evaluate(READ, panel) if (trace["meta"] or {}).get("column") == of]
            assert trace["x"] == pytest.approx(story.train.column(column).tolist())
            assert trace["y"] == story.train.column(of).tolist()


def test_the_newest_policy_is_shown_at_play(opened):
    until(opened, "document.querySelector('video').videoWidth === 64")
    assert "final.mp4, one of 2" in opened.inner_text("#film")


POINT = """(id) => {
    const place = document.getElementById(id), trace = place._fullData.find(one => one.name === "evaluation");
    const layout = place._fullLayout;
    return {x: layout.xaxis.d2p(trace.x[6]), y: layout.yaxis.d2p(trace.y[6])};
}"""
"""Where the seventh evaluation is drawn."""


def test_light_and_dark_follow_the_system_and_the_button(visit, opened, full):
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "document.getElementById('panel-returns').layout.font.color"
    light, dark = opened, visit(full[1], color_scheme="dark")
    assert (light.evaluate(ground), dark.evaluate(ground)) == ("rgb(255, 255, 255)", "rgb(20, 23, 28)")
    dark_ink = dark.evaluate(ink)
    assert light.evaluate(ink) != dark_ink
    light.click("#theme")
    assert light.evaluate(ground) == "rgb(20, 23, 28)"
    until(light, f"{ink} === '{dark_ink}'")
    dark.emulate_media(color_scheme="light")
    until(dark, f"{ground} === 'rgb(255, 255, 255)'")
    dark.click("#theme")
    dark.emulate_media(color_scheme="dark")
    dark.emulate_media(color_scheme="light")
    dark.wait_for_timeout(100)
    assert dark.evaluate(ground) == "rgb(20, 23, 28)"  # whoever has chosen keeps what was chosen


def test_a_phone_shows_it_without_scrolling_sideways(visit, full):
    page = visit(full[1], **NARROW)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    every = "[...document.querySelectorAll('.plot .main-svg')]"
    widths = page.evaluate(f"{every}.map(svg => svg.getBoundingClientRect().width)")
    assert min(widths) > 300 and max(widths) <= 390


HOSTILE = "<img src=x onerror=window.hacked=1></script><script>window.hacked=1</script>\"'&{{7*7}}${alert(1)}"


def test_no_text_of_a_run_becomes_code(visit, tmp_path):
    figures = {"episode_return_mean": 1.0, f"info/{HOSTILE}/mean": 1.0, f"gradient_norm/{HOSTILE}": 2.0}
    figures |= {f"{HOSTILE}_loss": 1.0, f"seconds/{HOSTILE}": 1.0}
    figures |= {f"histogram/action/{HOSTILE}": {"low": 0, "high": 1, "counts": [1, 2]}}
    rows = [train_row(i, **figures) for i in range(1, 40)]
    options = {"env": HOSTILE, "name": HOSTILE, HOSTILE: HOSTILE, "status": "failed"}
    identity = {"exit_reason": HOSTILE, "devices": [HOSTILE], "versions": {HOSTILE: HOSTILE}}
    identity |= {"resumed": [{"steps": HOSTILE, "level": HOSTILE}]}
    name = HOSTILE.replace("/", "∕")
    for i in (0, 1):
        make_run(tmp_path / f"{i}{name}", rows, identity=identity, **options | {"gamma": [HOSTILE, i]})
    runs = sorted(tmp_path.iterdir())
    for path in (make_report(runs[:1], tmp_path / "one.html").page, make_report(runs, tmp_path / "both.html").page):
        page = visit(path)
        assert page.evaluate("window.hacked") is None
        assert page.locator("img, script").count() == 1  # the one script, and no picture
        assert HOSTILE in page.inner_text("header")


def test_extremes_of_long_journals_reach_the_page(visit, tmp_path):
    rows = [train_row(i, episode_return_mean=1.0, approx_kl=0.001) for i in range(1, 9001)]
    rows[4567]["approx_kl"] = 7.0
    rows[1234]["episode_return_mean"] = -99.0
    page = visit(make_report([make_run(tmp_path / "run", rows)]).page)
    for panel, extreme in (("panel-approx_kl", 7.0), ("panel-returns", -99.0)):
        traces = [trace for trace in page.evaluate(READ, panel) if trace["meta"]]
        assert extreme in traces[0]["y"] and len(traces[0]["y"]) < 2100
    assert "9,000 points are drawn as 1,000 buckets" in page.inner_text("#divergence")


def test_several_runs_are_drawn_over_each_other(visit, tmp_path):
    runs = [
        make_run(tmp_path / f"{gamma}-{seed}", learning_rows(40, seed=seed), seed=seed, gamma=gamma)
        for gamma in (0.9, 0.99)
        for seed in (0, 1, 2)
    ]
    page = visit(make_report(runs).page)
    assert page.inner_text("h1") == "jax:CartPole-v1 · 6 runs"
    assert "algorithm.gamma" in page.inner_text("#differences")
    groups = [trace["meta"] for trace in page.evaluate(READ, "panel-returns") if trace["meta"]]
    assert groups == [{"group": "A"}, {"group": "B"}]
    assert page.locator("#sweep .main-svg").count() > 0


def test_a_page_without_metrics_opens(visit, tmp_path):
    page = visit(make_report([make_run(tmp_path / "run", [])]).page)
    assert "no row yet" in page.inner_text("header")
    page = visit(make_report([make_run(tmp_path / "other", [evaluation_row(1, 3.0)])]).page)
    assert page.evaluate("PANELS.length") == 2
