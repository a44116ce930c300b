"""Folders of clouds that are shown as folders of the system: they cannot rename, sync or lock."""

import contextlib
import errno
import fcntl
import os
from pathlib import Path

import pytest
from copied_runs import SmallRun, contents
from resume_runs import iterations, trainer

import ludus
from ludus.cli.main import main
from ludus.runs.folder import read_config, read_identity
from ludus.runs.storage import restore
from ludus.runs.storage.following import push
from ludus.runs.storage.options import StorageOptions
from ludus.runs.trackers import outages
from ludus.runtime import files
from ludus.types import LudusError

pytestmark = pytest.mark.requirement("S4.26")


@pytest.fixture(params=["renamed", "synced", "locked"])
def mount(request, tmp_path, monkeypatch):
    """A folder in which files cannot be renamed, synced or locked; its path, and what cannot be done."""
    place = tmp_path / "drive"
    place.mkdir()

    def refusing(error, real, *paths):
        def call(first, *rest, **options):
            named = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
            if options.get("src_dir_fd") is not None:
                named = os.readlink(f"/proc/self/fd/{options['src_dir_fd']}")
            if named.startswith(str(place)):
                raise OSError(error, os.strerror(error))
            return real(first, *rest, **options)

        return call

    if request.param == "renamed":
        monkeypatch.setattr(os, "replace", refusing(errno.EPERM, os.replace))
    elif request.param == "synced":
        monkeypatch.setattr(os, "fsync", refusing(errno.EINVAL, os.fsync))
    else:
        monkeypatch.setattr(fcntl, "flock", refusing(errno.ENOLCK, fcntl.flock))
    return place, request.param


def test_what_is_lacking_is_found_out_by_trying(mount, tmp_path):
    place, lacking = mount
    assert files.lacking(place) == lacking and files.lacking(place / "new" / "run") == lacking
    assert files.lacking(tmp_path) is None and not list(place.iterdir()) and list(tmp_path.iterdir()) == [place]


def test_copies_work_there_all_the_same(mount, tmp_path):
    place, _ = mount
    run = SmallRun(tmp_path / "run")
    for _ in range(3):
        run.advance()
        push(run.path, StorageOptions(url=f"file://{place}"))
    restore.pull(str(place / "run"), tmp_path / "back")
    assert contents(tmp_path / "back") == contents(run.path)
    assert not list(place.rglob(f"{files.PARTIAL}*"))


@pytest.mark.slow
def test_a_run_that_is_to_be_written_there_is_written_elsewhere_and_copied(mount, tmp_path, monkeypatch, capsys):
    place, lacking = mount
    monkeypatch.chdir(tmp_path)
    made = trainer("sac jax", place / "pendulum", verbose=True)
    with contextlib.closing(made.env):
        result = made.train(total_steps=iterations("sac jax", 2))
    said = f"{place / 'pendulum'}: files there cannot be {lacking}; the run is written to runs/pendulum and copied to"
    assert capsys.readouterr().err.count(f"{said} {place}") == 1
    assert result.run_dir == Path("runs/pendulum") and read_config("runs/pendulum")["storage"]["url"] == str(place)
    os.rename("runs", "lost")
    total = iterations("sac jax", 4)
    assert main(["resume", str(place / "pendulum"), f"total_steps={total}", "eval_episodes_final=0"]) == 0
    assert read_identity("runs/pendulum")["steps"] == read_identity(place / "pendulum")["steps"] == total
    with pytest.raises(LudusError, match="exists already"):
        trainer("sac jax", place / "pendulum")


def test_a_drive_that_is_not_mounted_is_not_mistaken_for_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(outages, "FIRST_PAUSE", 0.01)
    run = SmallRun(tmp_path / "run")
    run.advance()
    with pytest.raises(LudusError, match="is it mounted"):
        push(run.path, ludus.StorageOptions(url=str(tmp_path / "content" / "drive")))
    assert not (tmp_path / "content").exists()


def test_nothing_is_written_through_a_link(tmp_path, monkeypatch):
    monkeypatch.setattr(outages, "FIRST_PAUSE", 0.01)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "drive" / "run").mkdir(parents=True)
    (tmp_path / "drive" / "run" / "run.json").write_text("{}")
    (tmp_path / "drive" / "run" / "policies").symlink_to(tmp_path / "elsewhere")
    run = SmallRun(tmp_path / "run")
    run.advance()
    with pytest.raises(LudusError, match="link"):
        push(run.path, StorageOptions(url=str(tmp_path / "drive")))
    assert not list((tmp_path / "elsewhere").iterdir())
