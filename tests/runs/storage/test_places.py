"""Copies at every kind of place: S3, Google Cloud Storage, Google Drive and folders, behind their real clients."""

import contextlib
import json
import shutil

import pytest
import stores
from copied_runs import SmallRun, contents
from resume_runs import iterations, run

import ludus
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runs.folder import read_identity
from ludus.runs.storage import restore
from ludus.runs.storage.following import push
from ludus.runs.storage.options import StorageOptions
from ludus.runs.storage.places import opened
from ludus.training.state_arrays import differences
from ludus.training.verify import journal_of, state_of
from ludus.types import LudusError

PLACES = ("s3", "gcs", "gdrive", "folder", "memory")
pytestmark = [
    pytest.mark.slow,
    # The asynchronous clients below fsspec leave their connections to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@contextlib.contextmanager
def place(kind, monkeypatch, tmp_path):
    """Give the URL of a place of a kind."""
    if kind in ("s3", "gcs"):
        with getattr(stores, kind)(monkeypatch) as url:
            yield url
    elif kind == "gdrive":
        with stores.gdrive(monkeypatch, tmp_path) as url:
            yield url
    else:
        yield str(tmp_path / "mounted") if kind == "folder" else f"memory://{tmp_path.name}"


@pytest.mark.requirement("S4.26")
@pytest.mark.parametrize("kind", PLACES)
def test_a_copy_is_kept_up_to_date_and_comes_back(kind, monkeypatch, tmp_path):
    small = SmallRun(tmp_path / "run")
    (small.path / "videos").mkdir()
    (small.path / "videos" / "long.mp4").write_bytes(bytes(range(256)) * (9 << 12))  # more than one part
    with place(kind, monkeypatch, tmp_path) as url:
        for _ in range(3):
            small.advance()
            assert "each compared by its hash" in push(small.path, StorageOptions(url=url))
        assert restore.pull(f"{url}/run", tmp_path / "back") >= 10
        assert contents(tmp_path / "back") == contents(small.path)
        small.go_back()
        small.advance()
        push(small.path, StorageOptions(url=url, keep_last=1))
        restore.pull(f"{url}/run", tmp_path / "again")
        assert Checkpoints(tmp_path / "again").latest() == small.step
        assert restore.glance(url, tmp_path / "seen") == []
        with pytest.raises(LudusError, match="it holds the copies of run"):
            restore.pull(url, tmp_path / "none")
        with pytest.raises(LudusError, match="is not the copy of a run"):
            restore.pull(f"{url}/absent", tmp_path / "none")
        assert opened(url).names("absent") == []


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of eight iterations, and the same one after four."""
    folder = tmp_path_factory.mktemp("straight")
    run("sac jax", folder / "whole", 8)
    run("sac jax", folder / "half", 4)
    return folder


@pytest.mark.requirement("S4.27")
@pytest.mark.parametrize("kind", PLACES)
def test_a_run_goes_on_bit_by_bit_after_its_folder_is_gone(kind, straight, monkeypatch, tmp_path):
    local = tmp_path / "half"
    shutil.copytree(straight / "half", local)
    with place(kind, monkeypatch, tmp_path) as url:
        push(local, StorageOptions(url=url))
        shutil.rmtree(local)
        monkeypatch.chdir(tmp_path)
        restored = restore.restored(f"{url}/half")
    trainer = ludus.Trainer.resume(restored, verbose=False)
    trainer.final_episodes = 0
    with contextlib.closing(trainer.env):
        trainer.train(total_steps=iterations("sac jax", 8))
    assert read_identity(restored)["resumed"] == [{"steps": iterations("sac jax", 4), "level": "exact"}]
    assert differences(state_of(straight / "whole"), state_of(restored)) == []
    assert json.dumps(journal_of(straight / "whole")) == json.dumps(journal_of(restored))
