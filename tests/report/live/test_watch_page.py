"""The live page in a real Chromium, while something is written and while something trains."""

import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import chromium
import pytest
from run_folders import full_rows, learning_rows, make_run, write_questions
from watch_server import serving

from ludus.runs.folder import read_identity
from ludus.runs.journal import JOURNAL

pytestmark = [pytest.mark.slow, chromium.NEEDED]
NASTY = "<img src=x onerror=hacked()>"
LAST = "(Array.from(document.getElementById('panel-returns')?._fullData?.at(1).x || []).at(-1) || 0)"
"""Where the curve of returns ends."""


@pytest.fixture
def visit(browser):
    """Open a live page; whatever it says to the console, and whatever it asks of others, is held against it."""
    heard, contexts = [], []

    def open_page(served, **options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: heard.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        near = (f"http://127.0.0.1:{served.port}/", "data:", "blob:")
        page.on("request", lambda request: None if request.url.startswith(near) else heard.append(request.url))
        page.goto(served.address)
        page.wait_for_selector("html[data-ready=true]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert heard == []


def until(page, expression: str, seconds: float = 20.0) -> None:
    """Wait until something is so; the page's own policy forbids to leave the waiting to the browser."""
    for _ in range(int(seconds * 20)):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never so: {expression}")


def choose(page, name: str) -> None:
    page.locator("#runs a", has_text=name).first.click()
    page.wait_for_selector("#panel-returns", state="attached", timeout=90_000)
    page.locator("#panel-returns").scroll_into_view_if_needed()
    page.wait_for_selector("#panel-returns .main-svg", timeout=90_000)


def write(run, rows, how: str = "a") -> None:
    with (run / JOURNAL).open(how) as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.mark.requirement("S1.34")
def test_curves_grow_are_cut_and_grow_again_without_a_reload(tmp_path, visit):
    rows = learning_rows(200)
    run = make_run(tmp_path / "grows", rows[:66], status="interrupted")
    make_run(tmp_path / "other", full_rows(40))
    with serving(tmp_path) as served:
        page = visit(served)
        assert page.url.endswith("/")  # the token has left the address
        assert page.locator("#runs a").count() == 2
        choose(page, "grows")
        until(page, f"{LAST} === {60 * 1024}")
        page.evaluate("window.mark = 1")
        write(run, rows[66:132])
        until(page, f"{LAST} === {120 * 1024}")
        write(run, rows[:33], "w")  # as a run that was resumed
        until(page, f"{LAST} === {30 * 1024}")
        write(run, rows[33:])
        until(page, f"{LAST} === {200 * 1024}")
        assert page.evaluate("window.mark") == 1
        (run / "log.txt").write_text("first line\n")
        until(page, "document.getElementById('log').textContent === 'first line\\n'")
        choose(page, "other")
        until(page, f"{LAST} === {40 * 1024}")
        assert page.locator("#title").inner_text() == "jax:CartPole-v1 · ppo"
        make_run(tmp_path / "later", learning_rows(10))
        until(page, "document.querySelectorAll('#runs a').length === 3")
        shutil.rmtree(tmp_path / "later")
        until(page, "document.querySelectorAll('#runs a').length === 2")


def test_it_waits_for_the_first_run_and_finds_one(tmp_path, visit):
    with serving(tmp_path) as served:
        page = visit(served)
        assert page.locator("#none").is_visible()
        for i in range(3):
            make_run(tmp_path / f"run{i}", learning_rows(10))
        until(page, "document.querySelectorAll('#runs a').length === 3")
        assert page.locator("#none").is_hidden()
        page.locator("#filter").fill("run2")
        assert page.locator("#runs li:visible").count() == 1


def test_names_and_logs_are_text_whatever_they_say(tmp_path, visit):
    run = make_run(tmp_path / "<script>hacked()<\u2215script>", full_rows(20), env=NASTY, identity={"devices": [NASTY]})
    write(
        run, [{"kind": "train", "steps": 99999, f"{NASTY}_loss": 1.0, f"histogram/action/{NASTY}": {"counts": [NASTY]}}]
    )
    (run / "log.txt").write_text(f"{NASTY}\n</pre><script>hacked()</script>\x1b[31m\n")
    (run / "videos").mkdir()
    (run / "videos" / f"{NASTY}.gif").write_bytes(b"GIF89a\1\0\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0;")
    with serving(tmp_path) as served:
        page = visit(served)
        page.evaluate("void (window.hacked = () => { window.wasHacked = true; })")
        choose(page, "script")
        until(page, "document.getElementById('log').textContent.includes('onerror')")
        for plot in page.locator(".plot").all():
            plot.scroll_into_view_if_needed()
        until(page, "document.querySelector('#film img').complete")
        assert page.evaluate("document.querySelector('#film img').naturalWidth") == 1
        assert NASTY in page.locator("#title").inner_text()
        assert page.evaluate("[window.wasHacked, document.querySelectorAll('img[src=x]').length]") == [None, 0]


def test_colours_and_phones(tmp_path, visit):
    make_run(tmp_path / "run", full_rows(60))
    with serving(tmp_path) as served:
        page = visit(
            served, color_scheme="dark", viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
        )
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert page.locator("#run").is_hidden()
        choose(page, "run")
        assert page.locator("aside").is_hidden()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.locator("#theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        page.locator(".back").click()
        page.locator("#runs a").first.wait_for(state="visible", timeout=5000)  # the address changes first


def test_a_server_that_goes_away_is_noticed(tmp_path, browser):
    make_run(tmp_path / "run", learning_rows(10))
    context = browser.new_context()
    page = context.new_page()
    with serving(tmp_path) as served:
        page.goto(served.address)
        until(page, "document.getElementById('link').textContent === 'live'")
    until(page, "document.getElementById('link').textContent.startsWith('not connected')")
    context.close()


class Neighbour(http.server.BaseHTTPRequestHandler):
    """Another server on loopback: it remembers what it is told and sets cookies that only it needs."""

    cookies = ('theme={"mode":"dark"}; Path=/', "caf\u00e9=\u00fc; Path=/", f"many={'x' * 4000}; Path=/")

    def do_GET(self) -> None:
        self.server.heard.append(f"{self.path}\n{self.headers}")
        self.send_response(200)
        for cookie in self.cookies:
            self.send_header("Set-Cookie", cookie.encode().decode("latin-1"))
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>neighbour</title>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def neighbour():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Neighbour) as server:
        server.heard = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_another_server_of_this_machine_learns_nothing_and_breaks_nothing(tmp_path, browser, neighbour):
    make_run(tmp_path / "secret-run", learning_rows(10))
    context = browser.new_context()
    with serving(tmp_path) as served:
        page, other = context.new_page(), context.new_page()
        page.goto(served.address)
        until(page, "document.querySelectorAll('#runs a').length === 1")
        assert page.url.endswith("/")
        ours = f"http://127.0.0.1:{served.port}"
        other.goto(f"http://127.0.0.1:{neighbour.server_port}/")
        tried = other.evaluate(
            """async (ours) => {
              const got = [document.cookie, JSON.stringify({ ...localStorage }), JSON.stringify({ ...sessionStorage })];
              for (const path of ["/", "/events", "/watch.js"])
                for (const more of [{}, { credentials: "include" }, { mode: "no-cors", credentials: "include" }])
                  got.push(await fetch(ours + path, more).then((answer) => answer.text(), () => "refused"));
              const opened = window.open(ours + "/");
              await new Promise((resolve) => setTimeout(resolve, 500));
              try { got.push(opened.localStorage.getItem("ludus-token")); } catch { got.push("refused"); }
              return got;
            }""",
            ours,
        )
        told = "\n".join([*neighbour.heard, *tried])
        assert len(neighbour.heard) > 0
        assert served.access.token not in told
        assert "secret-run" not in told
        assert not [cookie for cookie in context.cookies() if served.access.token in cookie["value"]]
        page.reload()  # now with the cookies of the other server
        until(page, "document.getElementById('link').textContent === 'live'")
        until(page, "document.querySelectorAll('#runs a').length === 1")
        beside = context.new_page()
        beside.goto(f"{ours}/")  # a run opened in another tab needs no token in its address
        until(beside, "document.querySelectorAll('#runs a').length === 1")
    context.close()


def test_a_page_without_the_token_says_what_to_do_and_goes_on_when_it_comes(tmp_path, browser):
    make_run(tmp_path / "run", learning_rows(10))
    context = browser.new_context()
    page = context.new_page()
    with serving(tmp_path) as served:
        page.goto(f"http://127.0.0.1:{served.port}/#token=an-old-one")
        until(page, "document.getElementById('link').textContent.includes('open the address that ludus watch printed')")
        assert page.locator("#runs a").count() == 0
        page.evaluate("(hash) => { location.hash = hash; }", served.address.partition("#")[2])
        until(page, "document.querySelectorAll('#runs a').length === 1")
        assert page.url.endswith("/")
    context.close()


@pytest.mark.requirement("S1.34")
def test_the_button_stops_a_training_process_with_a_checkpoint(tmp_path, visit):
    run = tmp_path / "runs" / "trained"
    (tmp_path / "runs").mkdir()
    words = [
        "env=gym:CartPole-v1",
        "num_workers=0",
        "tracking.tensorboard=false",
        "total_steps=1e9",
        "eval_frequency=0",
        "preset=null",
        "num_envs=4",
        f"run_dir={run}",
    ]
    words += ["algorithm.batch_size=128", "algorithm.minibatch_size=64", "algorithm.network.hidden_sizes=[8]"]
    words += ["checkpoint.every_minutes=0", "checkpoint.every_iterations=1000000"]
    command = ["nice", "-n", "15", sys.executable, "-m", "ludus", "train", *words]  # the browser shares the cores
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child,
        serving(tmp_path / "runs") as served,
    ):
        try:
            page = visit(served)
            page.wait_for_selector("#runs a", timeout=60_000)
            until(page, "document.querySelector('#runs a small.status').textContent.includes('running')", 60)
            page.locator("#runs a", has_text="trained").click()  # that curves grow is another test's
            until(page, "document.getElementById('use').textContent.includes('%')", 90)
            assert str(child.pid) in page.locator("#use").inner_text()
            assert not list((run / "checkpoints").glob("*/manifest.json"))
            deadline = time.monotonic() + 90
            while not (run / "metrics.jsonl").stat().st_size and time.monotonic() < deadline:
                time.sleep(0.1)  # before its first iteration there is nothing to save
            page.locator("#stop").click()
            page.wait_for_timeout(300)
            assert child.poll() is None  # it asks first
            page.locator("#stop").click()
            assert child.wait(30) == 128 + signal.SIGTERM
            until(page, "document.getElementById('status').textContent === 'interrupted'")
            until(page, "document.getElementById('stop').hidden")
            steps = f"{read_identity(run)['steps']:,}"
            until(page, f"document.getElementById('facts').textContent.includes('{steps}')")
        finally:
            if child.poll() is None:
                os.kill(child.pid, signal.SIGKILL)
    assert read_identity(run)["status"] == "interrupted"
    assert len(list((run / "checkpoints").glob("*/manifest.json"))) == 1


def test_a_run_elsewhere_has_no_button_and_says_why(tmp_path, visit):
    make_run(tmp_path / "far", learning_rows(30), status="running", identity={"host": "another machine"})
    with serving(tmp_path) as served:
        page = visit(served)
        choose(page, "far")
        assert page.locator("#stop").is_hidden()
        assert "on another machine" in page.locator("#said").inner_text()


@pytest.mark.requirement("S0.20")
def test_questions_are_answered_by_keys_and_clicks(tmp_path, visit):
    run = make_run(tmp_path / "asks", learning_rows(10))
    make_run(tmp_path / "mute", learning_rows(10))
    write_questions(run, 4)
    answers = run / "reward" / "preferences.jsonl"
    with serving(tmp_path) as served:
        page = visit(served)
        page.locator("#runs a", has_text="asks").click()
        until(page, "document.getElementById('asked').textContent.startsWith('Question 1 of 4, 4 open')")
        until(page, "document.getElementById('moment').value === '7'")  # both clips are played
        pen = "document.querySelector('#{} .scene').getContext('2d')"
        seen = f"[...new Uint32Array({pen}.getImageData(0, 0, 300, 200).data.buffer)]"
        first, second = (page.evaluate(seen.format(side)) for side in ("first", "second"))
        assert len(set(first)) > 10 and first != second
        assert page.locator("#second .curve").count() == 4
        page.keyboard.press("2")
        until(page, "document.getElementById('asked').textContent.startsWith('Question 2 of 4, 3 open')")
        page.locator("#answers [data-answer=equal]").click()
        until(page, "document.getElementById('asked').textContent.startsWith('Question 3 of 4, 2 open')")
        page.keyboard.press("s")
        until(page, "document.getElementById('asked').textContent.startsWith('Question 4 of 4, 2 open')")
        page.locator("#clips [data-answer=first]").click()
        until(page, "document.getElementById('asked').textContent.startsWith('No question is open now')")
        page.keyboard.press("b")  # and another answer to the same
        until(page, "document.getElementById('asked').textContent.startsWith('Question 4 of 4, 1 open')")
        page.keyboard.press("2")
        until(page, "document.getElementById('heard').textContent === 'Question 4: the second is better.'")
        page.locator("#filter").press("1")  # a word to find a run by answers nothing
        page.locator("#filter").fill("")
        found = [json.loads(line) for line in answers.read_text().splitlines()]
        assert [(row["first"], row["prefer"]) for row in found] == [
            (0, "second"),
            (2, "equal"),
            (6, "first"),
            (6, "second"),
        ]
        page.locator("#runs a", has_text="mute").click()
        until(page, "document.getElementById('title').textContent.length > 4 && document.getElementById('ask').hidden")
