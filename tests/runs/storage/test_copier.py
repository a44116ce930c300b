"""Copying a run folder: whatever fails, and wherever it is cut off, the store holds a whole run."""

import itertools
import os
import shutil

import pytest
from copied_runs import Dictionary, Faulty, SmallRun, check_copy, contents

from ludus.runs.storage import base
from ludus.runs.storage import copier as copying
from ludus.runs.storage.base import MissingError, StorageError
from ludus.runs.storage.copier import Copier
from ludus.runs.storage.marker import SLOTS, read_marker
from ludus.types import LudusError

pytestmark = pytest.mark.requirement("S4.26")


def copied(run, store, **options):
    """Bring a copy up to date as a process that has just started."""
    copier = Copier(run.path, store, "memory://runs", **options)
    while copier.advance():
        pass
    return copier


def differences(run, store):
    """Return the paths that are here and not there, or the other way round, or differ."""
    there = {path.removeprefix("run/"): data for path, data in store.files.items()}
    here = contents(run.path) | {slot: there[slot] for slot in SLOTS if slot in there}
    return sorted(path for path in here.keys() | there.keys() if here.get(path) != there.get(path))


def test_the_copy_is_the_run_folder_and_nothing_is_sent_twice(tmp_path):
    run, store = SmallRun(tmp_path / "run"), Dictionary()
    run.advance()
    copied(run, store)
    assert differences(run, store) == []
    assert store.sent[-2:] == ["run/checkpoints/latest", f"run/{SLOTS[0]}"]
    store.sent.clear()
    assert copied(run, store).missing() == 0 and store.sent == []  # another process: the ledger knows
    run.advance()
    assert Copier(run.path, store, "memory://runs").missing() > 0
    copied(run, store)
    assert differences(run, store) == []
    blocks = [path for path in store.sent if "/blocks/" in path]
    assert len(blocks) <= 2  # of eight pieces of the long array one has changed
    assert store.sent[-1] == "run/checkpoints/latest"


def test_what_is_pruned_here_is_pruned_there_but_a_lost_checkpoint_stays(tmp_path):
    run, store = SmallRun(tmp_path / "run", keep_last=2), Dictionary()
    for _ in range(4):
        run.advance()
        copied(run, store)
    assert differences(run, store) == [] and "run/checkpoints/10/manifest.json" in store.removed
    (run.path / "policies/best_return_pi_ckpt.safetensors").unlink()
    shutil.rmtree(run.path / "checkpoints")
    copied(run, store)
    assert "run/checkpoints/40/manifest.json" in store.files
    assert "run/policies/best_return_pi_ckpt.safetensors" in store.files
    check_copy(store.files, "run")


def test_only_as_many_checkpoints_as_wanted_are_there(tmp_path):
    run, store = SmallRun(tmp_path / "run", keep_last=5), Dictionary()
    for _ in range(5):
        run.advance()
        copied(run, store, keep_last=2)
    steps = {path.split("/")[2] for path in store.files if path.endswith("manifest.json")}
    assert steps == {"40", "50"} and store.files["run/checkpoints/latest"] == b"50\n"
    assert len([path for path in store.files if "/blocks/" in path]) < len(
        list((run.path / "checkpoints/blocks").iterdir())
    )


def test_a_run_that_goes_back_takes_its_copy_along(tmp_path):
    run, store = SmallRun(tmp_path / "run", keep_last=3), Dictionary()
    store.watch = lambda: check_copy(store.files, "run")
    for _ in range(3):
        run.advance()
        copied(run, store)
    run.go_back()
    copied(run, store)
    assert differences(run, store) == [] and store.files["run/checkpoints/latest"] == b"10\n"
    run.advance()
    copied(run, store)
    assert differences(run, store) == []


@pytest.mark.parametrize("seed", range(6))
def test_a_store_that_fails_loses_nothing(tmp_path, seed):
    run, store, seen = SmallRun(tmp_path / "run", seed=seed), Dictionary(), []

    def watch():
        try:
            seen.extend([1] * (check_copy(store.files, "run") is not None))
        except LudusError:
            assert not seen  # the first marker of all is damaged: there has been no copy yet

    store.watch = watch
    faulty = Faulty(store, seed, rate=0.1)
    copier = Copier(run.path, faulty, "memory://runs")
    for _ in range(4):
        run.advance()
        for attempt in itertools.count():
            assert attempt < 2000
            try:
                copier = copier if attempt % 3 else Copier(run.path, faulty, "memory://runs")
                if not copier.advance():
                    break
            except StorageError:
                continue
    assert differences(run, store) == [] and len(faulty.faults) > 20


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_first_marker_that_does_not_arrive_as_it_was_sent_is_sent_again(tmp_path, is_restarted):
    run, store = SmallRun(tmp_path / "run"), Dictionary()
    run.advance()
    put = store.put

    def damaging(path, source):
        put(path, source)
        if path == f"run/{SLOTS[0]}":
            store.files[path] = b"\0" + store.files[path][1:]

    store.put = damaging
    copier = Copier(run.path, store, "memory://runs")
    with pytest.raises(StorageError):
        copier.advance()
    store.put = put
    stranger = SmallRun(tmp_path / "elsewhere" / "run")
    stranger.advance()
    with pytest.raises(LudusError, match="is damaged"):  # it may be the marker of a run that is not this one
        copied(stranger, store)
    copier = Copier(run.path, store, "memory://runs") if is_restarted else copier
    while copier.advance():
        pass
    assert differences(run, store) == []


class Cut(BaseException):
    """The process ends here."""


def test_a_copy_that_is_cut_off_anywhere_is_whole_and_goes_on(tmp_path):
    run = SmallRun(tmp_path / "run", keep_last=2)
    run.advance()
    start = Dictionary()
    copied(run, start)
    run.advance()
    run.advance()
    begun = tmp_path / "begun"
    shutil.copytree(run.path, begun)
    for cut in itertools.count(1):
        store, left = Dictionary(), [cut]
        store.files = dict(start.files)

        def watch(store=store, left=left):
            check_copy(store.files, "run")
            left[0] -= 1
            if not left[0]:
                raise Cut

        store.watch = watch
        shutil.rmtree(run.path)
        os.rename(shutil.copytree(begun, tmp_path / "again"), run.path)
        try:
            copied(run, store)
        except Cut:
            store.watch = lambda: None
            copied(run, store)
            assert differences(run, store) == [], cut
        else:
            assert cut > 15
            break


def test_two_runs_of_one_name_are_both_kept(tmp_path):
    store = Dictionary()
    for number in range(2):
        run = SmallRun(tmp_path / str(number) / "run")
        run.advance()
        place = copied(run, store).place
    assert place.startswith("memory/run-") and check_copy(store.files, "run").run != run.folder.identity["id"]
    assert check_copy(store.files, place.removeprefix("memory/")).run == run.folder.identity["id"]


def test_a_copy_that_another_folder_writes_is_left_alone_unless_it_is_taken_over(tmp_path):
    run, store = SmallRun(tmp_path / "run"), Dictionary()
    run.advance()
    copied(run, store)
    other = SmallRun.__new__(SmallRun)
    other.path = tmp_path / "elsewhere" / "run"
    shutil.copytree(run.path, other.path)
    shutil.rmtree(other.path / "storage")
    before = dict(store.files)
    with pytest.raises(StorageError, match=r"is written by another folder of this run.*--take-over") as refused:
        copied(other, store)
    assert refused.value.is_final and store.files == before
    copier = Copier(other.path, store, "memory://runs")
    copier.is_to_take_over = True
    assert copier.advance()
    with pytest.raises(StorageError, match="is written by another folder"):
        copied(run, store)


def test_a_piece_that_is_damaged_here_does_not_take_the_place_of_the_good_one_there(tmp_path):
    run, store = SmallRun(tmp_path / "run"), Dictionary()
    run.advance()
    copied(run, store)
    good = dict(store.files)
    for path in (run.path / "checkpoints").rglob("*"):
        if path.is_file() and path.name not in ("latest", "manifest.json"):
            path.write_bytes(b"\0" + path.read_bytes()[1:] + b"\1")
    copied(run, store)
    assert {path: data for path, data in store.files.items() if "checkpoints/" in path} == {
        path: data for path, data in good.items() if "checkpoints/" in path
    }
    check_copy(store.files, "run")


def test_half_a_marker_leaves_the_one_before(tmp_path):
    run, store = SmallRun(tmp_path / "run"), Dictionary()
    for _ in range(2):
        run.advance()
        copied(run, store)
    whole = read_marker(store, "run")
    store.files[f"run/{whole.slot}"] = store.files[f"run/{whole.slot}"][:-20]
    assert read_marker(store, "run").number == whole.number - 1
    copied(run, store)
    assert differences(run, store) == []


def test_a_copy_that_was_removed_is_made_anew(tmp_path):
    run, store = SmallRun(tmp_path / "run"), Dictionary()
    run.advance()
    copied(run, store)
    store.files.clear()
    copied(run, store)
    assert differences(run, store) == []


def test_links_and_the_copyings_own_state_are_not_copied(tmp_path):
    run, store = SmallRun(tmp_path / "run"), Dictionary()
    run.advance()
    (tmp_path / "secret").write_text("x")
    (run.path / "link").symlink_to(tmp_path / "secret")
    (run.path / "linked").symlink_to(tmp_path)
    copied(run, store)
    assert not [path for path in store.files if "link" in path or "storage" in path or "secret" in path]


def test_no_more_bytes_a_second_are_sent_than_wanted(tmp_path, monkeypatch):
    now, run, store = [0.0], SmallRun(tmp_path / "run"), Dictionary()
    run.advance()
    monkeypatch.setattr(base.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(base.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(copying, "WORKERS", 1)
    copied(run, store, pace=base.Pace(bandwidth=1000.0))
    sent = sum(len(data) for data in store.files.values())
    assert sent / 1000 - 5 < now[0] <= sent / 1000  # the last piece is not waited for


def test_what_is_not_there_is_a_missing_file():
    with pytest.raises(MissingError):
        Dictionary().told("x")
