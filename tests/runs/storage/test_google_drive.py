"""Google Drive behind its real client: names that are there twice, late lists, cut uploads, tokens that expire."""

import contextlib
import os
import threading

import pytest
from copied_runs import SmallRun, contents
from drive_server import ROOT, SHARED, Drive

from ludus.runs.storage import google_drive, restore
from ludus.runs.storage.base import LocalFile, MissingError, StorageError
from ludus.runs.storage.following import push
from ludus.runs.storage.google_drive import GoogleDrive
from ludus.runs.storage.options import StorageOptions
from ludus.types import LudusError

pytestmark = pytest.mark.requirement("S4.26")


@pytest.fixture
def drive(monkeypatch):
    drive, opened, init = Drive(), [], GoogleDrive.__init__
    monkeypatch.setenv(google_drive.ENDPOINT, drive.uri)
    monkeypatch.setattr(GoogleDrive, "__init__", lambda self, *words: opened.append(self) or init(self, *words))
    yield drive
    for store in opened:
        if hasattr(store, "_connections"):
            store.close()
    drive.close()


@pytest.fixture
def key(drive, tmp_path):
    return str(drive.token_file(tmp_path / "token.json"))


def source(data, tmp_path):
    path = tmp_path / "source"
    path.write_bytes(data)
    return LocalFile(os.open(path, os.O_RDONLY), len(data))


def read(store, path):
    return b"".join(store.pieces(path))


def test_a_file_that_is_there_is_updated_and_never_made_twice(drive, key, tmp_path):
    store = GoogleDrive("gdrive://Folder/runs", key)
    for data in (b"first", b"", b"a\r\n\r\nb\r", b"x" * (google_drive.PART + 5)):
        store.put("a/b.txt", source(data, tmp_path))
        GoogleDrive("gdrive://Folder/runs", key).put("a/b.txt", source(data, tmp_path))  # who does not know the id
        assert drive.below("Folder/runs") == {"a/b.txt": [data]}
        assert read(store, "a/b.txt") == data and store.told("a/b.txt").size == len(data)
    assert drive.refreshed <= 8
    store.remove("a/b.txt")
    store.remove("a/b.txt")
    assert drive.below("Folder/runs") == {}
    with pytest.raises(MissingError):
        store.told("a/b.txt")


def test_of_several_files_of_one_name_one_is_left(drive, key, tmp_path):
    folder = drive.add("Folder", ROOT)
    other = drive.add("Folder", ROOT)  # a second folder of that name, which is younger
    for data in (b"old", b"older", b"oldest"):
        drive.add("it's.txt", folder["id"], data)
    drive.add("it's.txt", other["id"], b"elsewhere")
    store = GoogleDrive("gdrive://Folder", key)
    store.put("it's.txt", source(b"new", tmp_path))
    assert sorted(drive.below("Folder")["it's.txt"]) == [b"elsewhere", b"new"]
    assert read(store, "it's.txt") == b"new"
    drive.add("it's.txt", folder["id"], b"planted")
    fresh = GoogleDrive("gdrive://Folder", key)
    assert b"".join(fresh.pieces("it's.txt", store.told("it's.txt").digests["sha256"])) == b"new"


def test_lists_that_are_late_make_nothing_twice(drive, key, tmp_path):
    drive.lag = 3600.0
    store = GoogleDrive("gdrive://Folder", key)
    for number in range(3):
        for name in ("a/1", "a/2", "b/1"):
            store.put(name, source(f"{name}{number}".encode(), tmp_path))
    assert drive.below("Folder") == {name: [f"{name}2".encode()] for name in ("a/1", "a/2", "b/1")}
    assert len([file for file in drive.files.values() if file["content"] is None]) == 3


def test_long_lists_have_several_pages(drive, key, tmp_path):
    store = GoogleDrive("gdrive://Folder", key)
    for number in range(16):  # the server shows seven at once
        store.put(f"many/{number}", source(b"x", tmp_path))
    assert len(GoogleDrive("gdrive://Folder", key).names("many")) == 16
    assert GoogleDrive("gdrive://Folder", key).names("") == ["many/"] and store.names("none") == []


def faulty(drive, fault, at):
    """Let one request have a fault: the one of that number among those whose method and path begin so."""
    count, method, path = [0], *at[:2]
    lock = threading.Lock()

    def plan(this_method, this_path):
        with lock:
            if this_method == method and this_path.startswith(path):
                count[0] += 1
                return fault if count[0] == at[2] else None
        return None

    drive.plan = plan
    return count


@pytest.mark.parametrize("fault", ["cut", "keeps half", "429", "500", "503", "429 wait", "token expires", "is lost"])
def test_a_long_upload_is_taken_up_where_it_was_cut(drive, key, tmp_path, monkeypatch, fault):
    monkeypatch.setattr(google_drive, "PART", 1 << 18)
    store, data = GoogleDrive("gdrive://Folder", key), os.urandom(5 << 18)
    store.put("warm", source(b"x", tmp_path))
    count = faulty(drive, fault, ("PUT", "/upload/session/", 3))
    store.put("long", source(data, tmp_path))
    assert drive.below("Folder")["long"] == [data] and 6 <= count[0] <= 8  # five parts, and one question
    assert fault != "token expires" or count[0] == 6  # the part is sent again at once, and whole
    assert not drive.sessions


def test_a_file_whose_creation_was_not_confirmed_is_not_made_twice(drive, key, tmp_path):
    store = GoogleDrive("gdrive://Folder", key)
    store.put("warm", source(b"x", tmp_path))
    for path in ("/upload/drive/v3/files", "/drive/v3/files"):
        for count in (1, 2, 3):
            faulty(drive, "is lost", ("POST", path, count))
            with contextlib.suppress(StorageError):
                store.put(f"new{count}/file", source(b"first", tmp_path))
            store.put(f"new{count}/file", source(b"second", tmp_path))
            assert drive.below("Folder")[f"new{count}/file"] == [b"second"]
    assert len({file["name"] for file in drive.files.values()}) == 6 and len(drive.files) == 8


def test_what_the_server_says_is_told_in_a_line_and_its_wish_to_wait_is_known(drive, key, tmp_path):
    store = GoogleDrive("gdrive://Folder", key)
    store.put("a", source(b"x", tmp_path))
    for fault, wait in (("429 wait", 1.0), ("403", 1.0), ("500", 0.0), ("400", 0.0)):
        drive.plan = lambda method, path, fault=fault: fault
        with pytest.raises(StorageError, match=f"gdrive://Folder: error {fault[:3]}") as error:
            store.told("a")
        assert error.value.wait == wait and not error.value.is_final


def test_who_may_not_delete_puts_into_the_bin(drive, key, tmp_path):
    store = GoogleDrive("gdrive://Folder", key)
    store.put("a", source(b"x", tmp_path))
    drive.undeletable = True
    store.remove("a")
    assert drive.below("Folder") == {} and any(file["trashed"] for file in drive.files.values())


@pytest.mark.parametrize("root", ["id:0ASharedDrive", "id:folder1"])
def test_shared_drives_by_a_service_account(drive, tmp_path, root, monkeypatch):
    drive.add("shared with the robot", SHARED, id="folder1")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(drive.key_file(tmp_path / "key.json")))
    run = SmallRun(tmp_path / "run")
    run.advance()
    push(run.path, StorageOptions(url=f"gdrive://{root}/runs"))
    run.advance()
    push(run.path, StorageOptions(url=f"gdrive://{root}/runs"))
    restore.pull(f"gdrive://{root}/runs/run", tmp_path / "back")
    assert contents(tmp_path / "back") == contents(run.path)
    assert not [path for path, several in drive.below("").items() if len(several) > 1]


def test_credentials_that_are_missing_or_none_are_one_line(drive, tmp_path, monkeypatch):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    (tmp_path / "none.json").write_text('{"client_secret": "hush-hush"}')
    for file in (None, str(tmp_path / "absent.json"), str(tmp_path / "none.json")):
        with pytest.raises(LudusError, match="no credentials") as error:
            GoogleDrive("gdrive://Folder", file)
        assert "\n" not in str(error.value) and "hush" not in str(error.value)
    with pytest.raises(LudusError, match="names no folder"):
        GoogleDrive("gdrive://", None)
