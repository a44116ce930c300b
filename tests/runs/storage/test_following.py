"""The process that copies a run beside training: what it costs, what it says, and what it never writes down."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import stores
from copied_runs import SmallRun, contents
from resume_runs import iterations, trainer

import ludus
from ludus.cli.main import main
from ludus.runs.folder import read_config, read_identity
from ludus.runs.storage import restore
from ludus.runs.storage.options import StorageOptions
from ludus.runs.storage.tracker import StorageTracker
from ludus.runs.trackers import companion
from ludus.types import LudusError

pytestmark = [pytest.mark.slow, pytest.mark.requirement("S4.26")]


class Followed:
    """A run that the test writes, with the tracker that a trainer would give it."""

    def __init__(self, path, url, **options):
        self.said = []
        self.run = SmallRun(path, storage={"url": url, **options})
        self.tracker = StorageTracker(StorageOptions(url=url, every_seconds=0.2, **options), self.said.append)
        self.tracker.begin(self.run.folder)

    def advance(self):
        self.run.advance()
        self.tracker.wake()

    def wait(self, condition, seconds=60.0):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.said
            self.tracker.wake()
            time.sleep(0.05)

    def end(self, status="finished"):
        self.run.folder.write_identity(status=status)
        self.run.folder.close()
        began = time.monotonic()
        self.tracker.end()
        return time.monotonic() - began


def test_a_run_is_copied_while_it_trains_and_complete_at_the_end(tmp_path):
    url = str(tmp_path / "drive")
    run = Followed(tmp_path / "run", url)
    run.advance()
    run.wait(lambda: (tmp_path / "drive/run/checkpoints/10/manifest.json").exists())
    run.advance()
    run.end()
    restore.pull(f"{url}/run", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(run.run.path)
    assert run.said == [f"storage: the run is copied to {url}/run"]
    assert main(["runs", url]) == 0  # what lies there is a run folder itself


@contextlib.contextmanager
def server(answer):
    """A web server with one way to answer everything."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answer(self)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815  the names that http.server asks for

        def log_message(self, *_):
            pass

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.daemon_threads = True
    threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    made.server_close()


def fails(handler):
    handler.send_error(503)


def test_storage_that_is_away_costs_a_warning_and_two_seconds(tmp_path, monkeypatch):
    asked = threading.Event()

    def hangs(_):
        asked.set()
        time.sleep(30.0)

    for name, value in stores.AMAZON.items():
        monkeypatch.setenv(name, value)
    with server(fails) as failing, server(hangs) as hanging:
        servers = {"nobody listens": "http://127.0.0.1:9", "fails": failing, "hangs": hanging, "not mounted": failing}
        runs, seconds = {}, {}
        for way, uri in servers.items():
            monkeypatch.setenv("AWS_ENDPOINT_URL", uri)
            url = str(tmp_path / "absent" / "drive") if way == "not mounted" else "s3://bucket/runs"
            runs[way] = Followed(tmp_path / way.replace(" ", "-"), url)
            runs[way].advance()
        for way, run in runs.items():
            run.wait(asked.is_set if way == "hangs" else lambda run=run: run.said)
            if way != "hangs":
                assert re.fullmatch(r"storage: .*; training goes on, the run folder has it all", run.said[0])
        ends = [threading.Thread(target=lambda w=w, r=r: seconds.update({w: r.end()})) for w, r in runs.items()]
        for end in ends:
            end.start()
        for end in ends:
            end.join()
    for way, run in runs.items():
        assert seconds[way] < companion.SILENT_SECONDS + 2.5  # of a machine that is busy; about two on one that is not
        assert len(run.said) <= 2 and "\n" not in run.said[-1]
        rest = rf"storage: \d+ files have not arrived; ludus push {run.run.path} sends the rest"
        assert re.fullmatch(rest, run.said[-1]), way


def test_a_process_that_was_killed_leaves_a_queue_that_push_sends(tmp_path, capsys):
    url = str(tmp_path / "drive")
    run = Followed(tmp_path / "run", url)
    run.advance()
    run.wait(lambda: (tmp_path / "drive/run/copy-0.json").exists())
    run.tracker.companion.process.kill()
    run.wait(lambda: run.tracker.companion.process is None)
    assert re.search(r"its process ended with code -9; ludus push .* sends the rest", run.said[-1])
    run.advance()
    run.end("interrupted")
    assert main(["push", str(run.run.path)]) == 0
    restore.pull(f"{url}/run", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(run.run.path)


SCRIPT = """
import os, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from test_following import Followed
run = Followed(Path(sys.argv[1]), sys.argv[2])
run.advance()
print(run.tracker.companion.process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_the_copy_of_a_trainer_that_was_killed_is_completed(tmp_path):
    url, here = str(tmp_path / "drive"), Path(__file__).parent
    words = [sys.executable, "-c", SCRIPT, str(tmp_path / "run"), url, str(here.parents[1] / "support"), str(here)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    process, deadline = int(done.stdout), time.monotonic() + 60
    while os.path.exists(f"/proc/{process}"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    restore.pull(f"{url}/run", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(tmp_path / "run")


def test_training_with_google_drive_writes_no_secret_down_and_goes_on_elsewhere(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with stores.gdrive(monkeypatch, tmp_path) as url:
        key = os.environ.pop("GOOGLE_APPLICATION_CREDENTIALS")
        storage = ludus.StorageOptions(url=url, every_seconds=1, key_file=key)
        made = trainer("sac jax", tmp_path / "run", storage=storage)
        with contextlib.closing(made.env):
            made.train(total_steps=iterations("sac jax", 4))
        assert read_config("run")["storage"] == {**vars(storage), "key_file": None}
        for path in (tmp_path / "run").rglob("*"):
            data = path.read_bytes() if path.is_file() else b""
            assert b"s3cret" not in data and key.encode() not in data, path
        (tmp_path / "run").rename(tmp_path / "lost")
        total = iterations("sac jax", 6)
        words = ["resume", f"{url}/run", f"total_steps={total}", f"storage.key_file={key}", "eval_episodes_final=0"]
        assert main(words) == 0
        assert read_identity("runs/run")["steps"] == total
        restore.pull(f"{url}/run", tmp_path / "back", key)  # the copy has gone on, too
        assert read_identity("back")["steps"] == total
        capsys.readouterr()
        assert main(["runs", url, "--json", "--key-file", key]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["name"], row["steps"], row["status"]) == ("run", total, "finished")
        assert main(["report", f"{url}/run", "--no-images", "--key-file", key]) == 0
        assert Path("run.html").stat().st_size > 10_000
        assert main(["push", "lost", "--key-file", key]) == 2  # it is behind the copy, and does not replace it
        assert "--take-over" in capsys.readouterr().err


BAD = {
    "storage=nowhere://x": "nowhere:// is no scheme that is known",
    "storage=s3://bucket/x": "no credentials",
    "storage=gs://bucket/x": "no credentials",
    "storage=gdrive://Folder": "no credentials",
    "storage=sftp://me:hush-hush@host/x": "came with a password",
    "storage=s3://": "names no place",
    "storage=gdrive://": "names no",
    "storage.bandwidth=-1": "must be a number of at least 0",
    "storage.keep_last=1.5": "storage.keep_last",
    "storage.url=''": "must be a text",
}


@pytest.mark.parametrize("word", BAD)
def test_a_place_that_cannot_be_is_one_line_before_anything_is_written(word, run, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    code, _, said = run("train", "env=jax:CartPole-v1", "total_steps=64", "run_dir=here", word)
    assert code == 2 and said.count("\n") == 1 and BAD[word] in said and "hush" not in said
    assert not Path("here").exists()


@pytest.mark.parametrize("verb", ["push", "pull", "resume", "runs", "report"])
def test_verbs_say_in_a_line_what_is_wrong_with_a_url(verb, run, tmp_path):
    words = [str(SmallRun(tmp_path / "run").path)] if verb == "push" else []
    code, _, said = run(verb, *words, "nowhere://x/y")
    assert code == 2 and said.count("\n") == 1 and "nowhere://" in said


def test_storage_needs_a_run_folder():
    made = trainer("ppo jax", None, storage=ludus.StorageOptions(url="/tmp/x"))
    with pytest.raises(LudusError, match="give run_dir"):
        made.train(total_steps=64)
