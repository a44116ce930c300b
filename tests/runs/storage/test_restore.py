"""Restoring a run from a store that anybody may have written."""

import dataclasses
import json

import pytest
from copied_runs import Dictionary, SmallRun, contents, hashed

from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import read_identity
from ludus.runs.storage import restore
from ludus.runs.storage.copier import Copier
from ludus.runs.storage.ledger import LedgerFile
from ludus.runs.storage.marker import Content, Marker, is_path, read_marker
from ludus.types import LudusError

pytestmark = pytest.mark.requirement("S4.27")


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A run and the store that holds its copy, at the place memory://runs/run."""
    run, store = SmallRun(tmp_path / "run"), Dictionary()
    run.advance()
    run.advance()
    Copier(run.path, store, "memory://runs").advance()
    below = Dictionary()
    below.files = {path.removeprefix("run/"): data for path, data in store.files.items()}
    monkeypatch.setattr(restore, "opened", lambda url, key_file: below if url.endswith("/run") else store)
    monkeypatch.setattr(restore, "FIRST_PAUSE", 0.001)
    return run, below


def marked(store, **changes):
    """Write a marker with other files as an owner of the store could."""
    old = read_marker(store, "")
    new = Marker(old.number + 1, old.run, old.writer, {**old.files, **changes})
    store.files = {path: data for path, data in store.files.items() if path != old.slot}
    store.files[new.slot] = new.encoded()


def refused(tmp_path, url="memory://runs/run"):
    with pytest.raises(LudusError) as error:
        restore.pull(url, tmp_path / "new" / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "new" / "run").exists() and not list(tmp_path.glob("new/.*"))
    return str(error.value)


def test_what_comes_back_is_what_was_copied(copy, tmp_path):
    run, store = copy
    assert restore.pull("memory://runs/run", tmp_path / "new" / "run") == len(read_marker(store, "").files)
    assert contents(tmp_path / "new" / "run") == contents(run.path)
    assert Checkpoints(tmp_path / "new" / "run").latest() == 20
    ledger = LedgerFile(tmp_path / "new" / "run").load()
    assert (ledger.url, ledger.folder) == ("memory://runs", "run")  # its copy is gone on with
    with pytest.raises(LudusError, match="exists already"):
        restore.pull("memory://runs/run", run.path)


def test_a_journal_that_has_grown_since_the_marker_is_cut_where_the_marker_was(copy, tmp_path):
    run, store = copy
    store.files["metrics.jsonl"] += b'{"seq": 99}\n'
    restore.pull("memory://runs/run", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(run.path)


EVIL = (
    *("../evil", "/etc/evil", "a/../../evil", "a//b", "./a", "a\\..\\b", "a\nb", "..", "", "a/. /b"),
    *("storage/sent.json", "copy-1.json", "x" * 300, "/".join("a" * 20)),
)


@pytest.mark.parametrize("path", EVIL)
def test_a_path_that_leaves_the_folder_is_refused(copy, tmp_path, path):
    _, store = copy
    assert not is_path(path)
    store.files[path] = b"evil"
    marked(store, **{path: Content(4, hashed(b"evil"))})
    assert "copy" in refused(tmp_path)
    assert not (tmp_path / "evil").exists()


def test_contents_with_another_hash_or_length_are_refused(copy, tmp_path):
    _, store = copy
    good = dict(store.files)
    state = "checkpoints/20/state.safetensors"
    for damaged in (good[state][:-1] + b"\0", good[state][:-1], b""):
        store.files = {**good, state: damaged}
        assert f"{state}: is not what was copied" in refused(tmp_path)
    store.files = {path: data for path, data in good.items() if path != state}
    assert state in refused(tmp_path)


def test_more_than_the_disk_holds_is_refused_before_anything_is_brought(copy, tmp_path):
    _, store = copy
    marked(store, **{"videos/a.mp4": Content(1 << 47, "0" * 64)})
    assert "bytes, and" in refused(tmp_path)


def test_an_endless_file_is_read_no_further_than_it_may_be(copy, tmp_path):
    _, store = copy
    read, pieces = [], store.pieces

    def endless(path, sha256=None):
        if path != "config.yaml":
            yield from pieces(path)
            return
        while True:
            read.append(1)
            assert len(read) < 100
            yield b"x" * 1000

    store.pieces = endless
    assert "config.yaml: is not what was copied" in refused(tmp_path)


def test_a_file_that_is_a_folder_too_is_refused(copy, tmp_path):
    _, store = copy
    store.files |= {"a": b"x", "a/b": b"x"}
    marked(store, **{"a": Content(1, hashed(b"x")), "a/b": Content(1, hashed(b"x"))})
    assert "is both a file and a folder" in refused(tmp_path)


def test_markers_that_are_none_are_refused(copy, tmp_path):
    _, store = copy
    marker = read_marker(store, "")
    good, slot = dict(store.files), marker.slot
    store.files = {path: data for path, data in good.items() if not path.startswith("copy-")}
    empty = dict(store.files)
    assert "is not the copy of a run" in refused(tmp_path)
    said = json.loads(marker.encoded())
    other, renumbered = marker.encoded().replace(b"copy-1", b"copy-2"), json.dumps(said | {"number": 7}).encode()
    for data in (b"", b"[]", b"{}", b"\xff", b"[" * 100_000, other, renumbered):
        store.files = {**empty, slot: data}
        assert "copy-" in refused(tmp_path)
    longer, none = {"a": Content(-1, "0" * 64)}, {"a": Content(1, "zz")}
    for changes in ({"number": -1}, {"number": "x"}, {"run": "../x"}, {"files": longer}, {"files": none}):
        store.files = {**empty, slot: dataclasses.replace(marker, **changes).encoded()}
        assert "copy-" in refused(tmp_path)
    few = {path: content for path, content in marker.files.items() if path != "run.json"}
    store.files = {**empty, slot: dataclasses.replace(marker, files=few).encoded()}
    assert "run.json is not in it" in refused(tmp_path)
    store.files = {**empty, slot: dataclasses.replace(marker, run="f" * 32).encoded()}
    assert "is of another run" in refused(tmp_path)


def test_the_folder_of_several_runs_says_which_there_are(copy, tmp_path):
    assert "it holds the copies of run" in refused(tmp_path, "memory://runs")


def test_a_glance_brings_what_tells_how_runs_stand(copy, tmp_path):
    run, _ = copy
    assert restore.glance("memory://runs", tmp_path / "seen") == []
    assert sorted(contents(tmp_path / "seen" / "run")) == ["config.yaml", "metrics.jsonl", "run.json"]
    assert read_identity(tmp_path / "seen" / "run")["id"] == run.folder.identity["id"]
