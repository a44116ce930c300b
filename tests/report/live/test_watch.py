"""The live page: what it reads of run folders, what it tells a page, and whom it may ask to stop."""

import fcntl
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from run_folders import evaluation_row, full_rows, learning_rows, make_run

from ludus.cli.main import main
from ludus.report.live import process
from ludus.report.live.process import TrainingProcess, UsageMeter
from ludus.report.live.run_index import RunIndex
from ludus.report.live.run_view import PANEL_BYTES, RunView
from ludus.report.live.stream import PageUpdates
from ludus.runs.journal import JOURNAL
from ludus.runs.table import Reader, read
from ludus.types import LudusError

pytestmark = pytest.mark.slow

HOLD = """
import fcntl, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
journal = open(sys.argv[1], "ab")
if sys.argv[2] == "lock":
    fcntl.flock(journal, fcntl.LOCK_EX)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def hold():
    """Start processes that hold a file open, locked or not; end them afterwards."""
    started = []

    def begin(path: Path, how: str = "lock") -> subprocess.Popen:
        child = subprocess.Popen([sys.executable, "-c", HOLD, str(path), how], stdout=subprocess.PIPE)
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        return child

    yield begin
    for child in started:
        child.kill()
        child.communicate()


def index_of(folder: Path) -> RunIndex:
    made = RunIndex(folder)
    again(made)
    return made


def rows(made: RunIndex) -> dict:
    return {run.name: run.row for run in made.runs.values()}


def again(made: RunIndex) -> dict:
    """Look until every journal is read to its end: the list itself comes before that."""
    is_behind = True
    while is_behind:
        made._refreshed = -1e9
        made.refresh()
        is_behind = any(run.is_behind for run in made.runs.values())
    return rows(made)


def append(run: Path, new: list[dict]) -> None:
    with (run / JOURNAL).open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in new)


# --- a journal that grows ---


def test_a_growing_journal_reads_like_a_whole_one(tmp_path):
    run = make_run(tmp_path / "run", full_rows(7))
    reader = Reader(run / JOURNAL)
    for i in range(8, 90):
        assert not reader.read_more()
        text = (run / JOURNAL).read_bytes() + json.dumps(full_rows(i)[-1]).encode() + b"\n"
        (run / JOURNAL).write_bytes(text[:-9])  # half a line, then the rest
        reader.read_more()
        (run / JOURNAL).write_bytes(text)
    reader.read_more()
    found, wanted = reader.journal(), read(run)
    assert wanted.train.rows > 80
    assert found.train.columns.keys() == wanted.train.columns.keys()
    assert all(
        (found.train.columns[name] == values)[values == values].all() for name, values in wanted.train.columns.items()
    )
    assert found.train.objects == wanted.train.objects
    assert found.damaged == 0


def test_a_journal_that_was_cut_is_read_anew(tmp_path):
    run = make_run(tmp_path / "run", learning_rows(50))
    reader = Reader(run / JOURNAL)
    reader.read_more()
    whole = (run / JOURNAL).read_bytes().splitlines(keepends=True)
    (run / JOURNAL).write_bytes(b"".join(whole[:20]))
    reader.read_more()
    assert reader.journal().train.rows == read(run).train.rows < 20
    # Cut and grown beyond what was read before anyone looked.
    other = [line.replace(b'"elapsed_seconds": ', b'"elapsed_seconds": 1') for line in whole[10:]]
    (run / JOURNAL).write_bytes(b"".join(whole[:10] + other))
    reader.read_more()
    assert (
        reader.journal().train.columns["elapsed_seconds"].tolist()
        == read(run).train.columns["elapsed_seconds"].tolist()
    )
    (run / JOURNAL).unlink()
    (run / JOURNAL).symlink_to("/etc/passwd")
    with pytest.raises(LudusError, match="cannot be read"):
        reader.read_more()


# --- the list ---


def test_the_list_tells_what_each_run_is_and_how_it_stands(tmp_path, hold):
    make_run(tmp_path / "done", learning_rows(40), status="finished")
    dead = make_run(tmp_path / "dead", learning_rows(40), status="running", identity={"host": os.uname().nodename})
    make_run(tmp_path / "far", learning_rows(40), status="running", identity={"host": "another machine"})
    live = make_run(tmp_path / "sweep" / "live", [], status="running")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    hold(live / JOURNAL)
    made = index_of(tmp_path)
    found = rows(made)
    told = {name: (row["status"], row["stoppable"]) for name, row in found.items()}
    assert told == {
        "done": ("finished", False),
        "dead": ("killed", False),
        "far": ("running elsewhere", False),
        "sweep/live": ("running", True),
        "broken": ("damaged", False),
    }
    assert (found["done"]["steps"], found["done"]["best"], len(found["done"]["spark"])) == (40960, 500.0, 40)
    append(dead, learning_rows(50)[-6:])
    assert again(made)["dead"]["steps"] == 51200
    (dead / JOURNAL).write_text((dead / JOURNAL).read_text().splitlines(keepends=True)[0])
    assert (again(made)["dead"]["steps"], rows(made)["dead"]["best_of"]) == (1024, "training")


def test_what_has_not_changed_is_not_told_again(tmp_path):
    for i in range(60):
        make_run(tmp_path / f"run{i}", learning_rows(60, seed=i), seed=i)
    made = index_of(tmp_path)
    updates = PageUpdates(made, None)
    first = updates.next_update()
    while updates.has_more:
        first += updates.next_update()
    assert len(re.findall(rb'"name":', first)) == 60
    again(made)
    assert updates.next_update() == b""
    append(tmp_path / "run7", learning_rows(70)[-5:])
    again(made)
    update = updates.next_update()
    assert re.findall(rb'"name":"([^"]*)"', update) == [b"run7"]
    (tmp_path / "run7" / JOURNAL).unlink()
    for name in ("run.json", "config.yaml"):
        (tmp_path / "run7" / name).unlink()
    again(made)
    assert re.findall(rb'"gone":\["\w{16}"\]', updates.next_update())


def test_looking_takes_no_lock(tmp_path):
    run = make_run(tmp_path / "run", learning_rows(5), status="running")
    made, refused, ended = RunIndex(tmp_path), [], threading.Event()

    def look() -> None:
        while not ended.is_set():
            again(made)

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(300):
        with (run / JOURNAL).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                refused.append(1)
    ended.set()
    thread.join()
    assert refused == []


# --- the run that is open ---


@pytest.mark.parametrize("make", [learning_rows, full_rows])
def test_updates_are_small_and_in_the_end_everything_is_told(tmp_path, make):
    run = make_run(tmp_path / "run", make(3000))
    append(run, [evaluation_row(i, 100.0) for i in range(3000, 9000)])
    for i in range(100):
        make_run(tmp_path / f"other{i}", learning_rows(30))
    (run / "log.txt").write_text('"\u00e9<\n' * 9000)
    made = index_of(tmp_path)
    view = RunView(next(run for run in made.runs.values() if run.name == "run"))
    view.refresh(is_asked_to_stop=False)
    page = PageUpdates(made, view)
    updates = [page.next_update()]
    while page.has_more:
        updates.append(page.next_update())
    assert max(map(len, updates)) < 100_000
    told = set(re.findall(r'"id":"(panel-[^"]*)"', b"".join(updates).decode()))
    assert told == set(view.panels)
    assert {"panel-returns", "panel-value_loss", "panel-approx_kl"} < told
    if make is full_rows:
        assert {"panel-gradient_norm_layers", "panel-histogram/action/time"} < told
    assert max(len(text) for _, text in view.panels.values()) <= PANEL_BYTES
    assert page.next_update() == b""


def test_damage_is_told_and_does_not_end_anything(tmp_path):
    run = make_run(tmp_path / "run", learning_rows(20))
    made = index_of(tmp_path)
    view = RunView(next(iter(made.runs.values())))
    (run / "config.yaml").write_text("a: [")
    view.refresh(is_asked_to_stop=False)
    assert "not readable YAML" in view.head["problem"]
    os.remove(run / JOURNAL)
    view._next_refresh = 0
    view.refresh(is_asked_to_stop=False)
    assert "cannot be read" in view.head["problem"]


# --- processes ---


def test_the_one_that_holds_the_lock_is_found_and_stopped(tmp_path, hold):
    run = make_run(tmp_path / "run", learning_rows(5), status="running")
    idle, child = hold(run / JOURNAL, "open"), hold(run / JOURNAL)
    made = index_of(tmp_path)
    (key,) = made.runs
    assert made.runs[key].process is not None
    assert made.runs[key].process.pid == child.pid
    meter = UsageMeter(made.runs[key].process)
    assert meter.measure().memory > 1 << 20
    time.sleep(0.05)
    assert meter.measure().processors < 0.9
    assert made.stop(key) == "it saves at the end of its iteration and leaves"
    assert child.wait(10) == 7
    assert idle.poll() is None
    assert meter.measure() is None
    with pytest.raises(LudusError, match="no process of this machine"):
        made.stop(key)


def test_a_second_wish_to_stop_is_not_a_second_signal(tmp_path, hold, monkeypatch):
    run = make_run(tmp_path / "run", learning_rows(5), status="running")
    hold(run / JOURNAL)
    made = index_of(tmp_path)
    sent = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda handle, number: sent.append(number))
    said = [made.stop(*made.runs), made.stop(*made.runs)]
    assert sent == [signal.SIGTERM]
    assert said[1].startswith("it was asked already")
    assert made.is_asked_to_stop(next(iter(made.runs.values())))


def test_no_other_process_is_ever_signalled(tmp_path, hold, monkeypatch):
    run, other = (make_run(tmp_path / name, learning_rows(5)) for name in ("run", "other"))
    innocent, open_only = hold(other / JOURNAL), hold(run / JOURNAL, "open")
    inode = (run / JOURNAL).stat().st_ino
    for liar in (innocent.pid, open_only.pid, os.getpid(), 1, 2**22 - 1):
        assert process.find_training_process(run / JOURNAL, {inode: [liar]}) is None
        with pytest.raises(LudusError, match="is gone"):
            process.request_stop(run / JOURNAL, TrainingProcess(liar, 1))
    found = process.find_training_process(other / JOURNAL, process.exclusive_locks())
    assert found == TrainingProcess(innocent.pid, process._stat_fields(innocent.pid)[process.START])
    with pytest.raises(LudusError, match="is gone"):  # the same number, but a process that began at another time
        process.request_stop(other / JOURNAL, TrainingProcess(innocent.pid, found.started + 1))
    assert innocent.poll() is None
    assert open_only.poll() is None


def test_device_memory_is_what_the_driver_tells(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{os.getpid()}, 2048'\necho '{os.getpid()}, 1'\necho 'nonsense'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(process, "_last_answer", None)
    use = UsageMeter(TrainingProcess(os.getpid(), process._stat_fields(os.getpid())[process.START])).measure()
    assert use.device_memory == 2049 << 20
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setattr(process, "_last_answer", None)
    assert process.device_memory() == {}


# --- the command ---


@pytest.mark.parametrize(("words", "said"), [
    (["nowhere"], "nowhere: is not a folder; give the one that holds your runs, or make it first"),
    ([".", "--port", "99999"], "--port=99999: must be between 0 (any free one) and 65535"),
    ([".", "--port", "x"], "argument --port: invalid int value"),
    ([".", "--host", "203.0.113.7"], "--host=203.0.113.7: cannot be listened on"),
])  # fmt: skip
def test_mistakes_are_one_line(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["watch", *words]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "WARNING" not in line]
    assert len(lines) == 1
    assert said in lines[0]


def test_a_port_that_is_taken(tmp_path, capsys, monkeypatch):
    from ludus.report.live import server

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["watch", str(tmp_path), "--port", str(port)]) == 2
        assert f"--port={port}: cannot be listened on (address already in use)" in capsys.readouterr().err
        monkeypatch.setattr(server, "PORTS", range(port, port + 1))
        assert main(["watch", str(tmp_path)]) == 2
        assert f"no port from {port} to {port} is free; give one with --port" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_and_ends_cleanly_with_pages_open(number, tmp_path):
    command = [sys.executable, "-m", "ludus", "watch", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = child.stdout.readline()
        found = re.fullmatch(r"watching \S+: (http://127\.0\.0\.1:\d+/)#token=([\w-]{43})\n", said)
        assert found
        asked = urllib.request.Request(f"{found[1]}events", headers={"X-Ludus-Token": found[2]})
        place = "127.0.0.1", int(found[1].split(":")[2].strip("/"))
        with socket.create_connection(place, timeout=20) as garbage:
            garbage.sendall(b"\x00\r\n\r\n")
            assert b" 400 " in garbage.recv(100)
        stranger = socket.create_connection(place)
        with urllib.request.urlopen(asked, timeout=20) as page, stranger:
            assert page.readline() == b"event: runs\n"
            child.send_signal(number)
            rest = child.communicate(timeout=20)
            page.read()  # which would complain of an answer without an end
    assert (child.returncode, rest) == (0, ("", ""))


def test_a_name_with_several_addresses_has_one_port(tmp_path, monkeypatch):
    from ludus.report.live import server

    both = [(socket.AF_INET, 1, 6, "", ("127.0.0.1", 0)), (socket.AF_INET, 1, 6, "", ("127.0.0.2", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    listeners = server._bind("localhost", 0)
    assert len({listener.getsockname()[1] for listener in listeners}) == 1
    assert [listener.getsockname()[0] for listener in listeners] == ["127.0.0.1", "127.0.0.2"]
    for listener in listeners:
        listener.close()


def test_another_host_is_said_loudly(tmp_path):
    command = [sys.executable, "-m", "ludus", "watch", str(tmp_path), "--port", "0", "--host", "0.0.0.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.terminate()
        assert "WARNING: --host=0.0.0.0 lets other machines reach this page" in child.communicate(timeout=20)[1]


def test_it_needs_no_jax():
    heavy = {"jax", "flax", "scipy", "plotly", "mlflow"}
    code = f"import sys, ludus.report.live.server; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("code", ["import ludus", "from ludus.cli.main import main; main(['--help'])"])
def test_nothing_else_needs_the_server(code):
    code += "; import sys; print(sorted({'starlette', 'uvicorn', 'anyio', 'h11'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
