"""Run folders from a stranger: one bad run harms no other, is named with its reason, and costs little."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from places import ROOT, SUPPORT
from run_folders import learning_rows, make_run
from watch_server import serving

from hostile_runs import KINDS, make_shelf
from ludus.runs import journal, limits, table
from ludus.runs.journal import JournalReader
from ludus.runs.reader import list_runs
from ludus.runs.trackers.cursor import CursorFiles
from ludus.runs.trackers.mlflow.names import Translator
from ludus.runs.trackers.tensorboard import complete
from ludus.types import LudusError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trials() -> dict[str, dict[str, Any]]:
    """Every kind of bad run, shown to every verb by a process that can be forked, as this one cannot."""
    path = os.pathsep.join([str(ROOT / "src"), str(SUPPORT)])
    command = [sys.executable, str(SUPPORT / "hostile_runs.py"), *KINDS]
    environment = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return {row["kind"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", KINDS)
def test_a_bad_run_is_named_and_the_others_are_shown(trials, name):
    assert trials[name]["failure"] is None


def test_the_live_page_lists_all_of_them(tmp_path):
    for i, name in enumerate(name for name in KINDS if name != "name that is not UTF-8"):
        make_shelf(tmp_path / str(i), name, 0)
    make_shelf(tmp_path / "z", "name that is not UTF-8", 0)
    with serving(tmp_path) as page:
        told = page.ask(page.head(target="/events"), seconds=3.0)
    assert told.status == 200 and told.body.count(b'"status":"finished"') >= 2
    listed = list_runs(tmp_path)
    assert len(listed) == 3 * len(KINDS)
    assert sum(row.status == "damaged" for row in listed) >= sum(kind.is_lost for kind in KINDS.values())


def test_a_journal_says_how_much_of_it_is_damaged(tmp_path):
    run = make_run(tmp_path / "run", learning_rows(30))
    whole = table.read(run)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b"x" * (2 * limits.MOST_LINE) + b"\n" + b'{"kind": "train", "steps": 1' + b"[" * 5000 + b"}\n")
        file.write(b'{"kind": "train", ' + b", ".join(b'"c%d": 1' % i for i in range(3000)) + b"}\n")
        file.write(json.dumps({"kind": "train", "steps": 99_999, "entropy": 0.5}).encode() + b"\n")
    read = table.read(run)
    assert (read.damaged, read.train.rows, read.train.last("steps")) == (3, whole.train.rows + 1, 99_999)
    assert set(read.train.columns) == set(whole.train.columns)


def test_a_line_that_is_too_long_is_counted_once_however_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "MOST_LINE", 2500)
    rows = [b'{"kind": "train", "steps": %d}' % i for i in range(200)]
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([*rows[:100], b"y" * 7000, *rows[100:], b"z" * 9000, b""]))
    read = table.read(tmp_path)
    assert read.damaged == 2 and read.train.column("steps").tolist() == list(range(200))


def test_trackers_leave_damaged_rows_out(tmp_path):
    run = make_run(tmp_path / "run", learning_rows(3))
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    odd = [b'{"seq": 1, "steps": "x"}\n', b'{"seq": 2, "steps": 1, "elapsed_seconds": 1e308}\n', b"\xff\n", b"[]\n"]
    (run / "metrics.jsonl").write_bytes(b"".join([lines[0], *odd, *lines[1:]]))
    reader, translator, said = JournalReader(run / "metrics.jsonl"), Translator(0), []
    rows = reader.read_rows()
    assert [row["seq"] for row in rows] == list(range(len(lines) + 4)) and reader.damaged == 4
    assert [bool(translator.metrics(row)) for row in rows] == [True, *[False] * 4, *[True] * (len(lines) - 1)]
    assert complete(run, said.append) == len(lines) + 4 and "4 rows of the journal are damaged" in said[0]
    assert complete(run) == 0


@pytest.mark.parametrize("change", [
    {"run": "../../x"}, {"run": 3}, {"started": "then"}, {"sending": []},
    {"sending": {"first": 10**12, "digests": [], "metrics": []}},
    {"sending": {"first": 0, "digests": ["zz"], "metrics": []}},
    {"sending": {"first": 0, "digests": [], "metrics": [["a", "b", 1, 2]]}},
])  # fmt: skip
def test_a_cursor_of_a_stranger_is_refused(tmp_path, change):
    cursor = {"uri": "x", "experiment": "1", "run": "abc", "started": 1, "continues": None}
    cursor |= {"sending": {"first": 0, "digests": [], "metrics": []}}
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "cursor.json").write_text(json.dumps(cursor))
    assert CursorFiles(tmp_path).load() is not None
    (tmp_path / "mlflow" / "cursor.json").write_text(json.dumps(cursor | change))
    with pytest.raises(LudusError, match=r"cursor\.json: is damaged"):
        CursorFiles(tmp_path).load()
