"""Run folders from strangers: nothing is written, cut or removed through a link in one, and the link is named."""

import os
import shutil
from pathlib import Path

import pytest

from crash_points import snapshot
from ludus import Trainer
from ludus.cli import main as cli
from ludus.runs.checkpoint.store import Checkpoints
from ludus.runtime import files

pytestmark = pytest.mark.slow

WORDS = ["train", "env=CartPole-v1", "total_steps=512", "eval_frequency=0", "verbose=false"]
SIZES = ["algorithm.batch_size=64", "algorithm.minibatch_size=64", "checkpoint.every_iterations=2"]
SECRET = b"this is the user's own\n"
FILES = [
    "config.yaml",
    "run.json",
    "metrics.jsonl",
    "log.txt",
    "checkpoints/latest",
    "policies/final_actor.safetensors",
]
FOLDERS = ["policies", "tensorboard", "checkpoints", "checkpoints/blocks", "exports", "report", "videos", "episodes"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run as someone else has made it."""
    folder = tmp_path_factory.mktemp("stranger") / "run"
    assert cli.main([*WORDS, *SIZES, f"run_dir={folder}"]) == 0
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of it, which a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "runs" / "run"))


class Outside:
    """What a link leads to: a file or a folder of the user, and what is in it."""

    def __init__(self, path: Path):
        """A folder with a copy of what the link stands for, so that nothing looks wrong, and something besides."""
        self.path = path

    def plant(self, link: Path) -> None:
        """Put a link in the place of a file or folder of a run."""
        if link.is_dir():
            shutil.move(link, self.path)
        elif link.exists():
            self.path.write_bytes(link.read_bytes() + SECRET)
            link.unlink()
        elif link.suffix or link.name.startswith("."):
            self.path.write_bytes(SECRET)
        else:
            self.path.mkdir()
        if self.path.is_dir():
            (self.path / "own").write_bytes(SECRET)
        link.parent.mkdir(exist_ok=True, parents=True)
        link.symlink_to(self.path)
        self.before = self._content()

    def check(self) -> None:
        """It is what it was."""
        assert self._content() == self.before

    def _content(self) -> dict[str, tuple[int, bytes]]:
        paths = [self.path, *sorted(self.path.rglob("*"))]
        return {str(p): (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in paths}


@pytest.fixture
def outside(tmp_path):
    return Outside(tmp_path / "outside")


def refused(words: list[str], link: Path, capsys) -> str:
    """Run a command that must name a link, on one line, and fail."""
    capsys.readouterr()
    assert cli.main(words) == 2
    lines = capsys.readouterr().err.splitlines()
    assert "link" in lines[-1] and link.name in lines[-1], lines
    assert not any(line.startswith("Traceback") for line in lines)
    return lines[-1]


# --- Every place that is written ---


@pytest.mark.parametrize("name", [*FILES, *FOLDERS, ".partial-0123-config.yaml", "checkpoints/.partial-512"])
def test_resume_refuses_a_link_before_it_does_anything(name, run, outside, capsys):
    outside.plant(run / name)
    refused(["resume", str(run), "total_steps=1024"], run / name, capsys)
    outside.check()


@pytest.mark.parametrize("name", ["tensorboard", "tensorboard/FILE", "metrics.jsonl", "mlflow", "mlflow/cursor.json"])
def test_track_refuses_a_link(name, run, outside, capsys):
    link = run / name.replace("FILE", next((run / "tensorboard").iterdir()).name)
    outside.plant(link)
    refused(["track", str(run)], link, capsys)
    outside.check()


@pytest.mark.parametrize("name", ["exports", "exports/final_actor", "exports/final_actor/final_actor.safetensors"])
@pytest.mark.parametrize("kind", ["there", "missing"])
def test_export_refuses_a_link(name, kind, run, outside, capsys):
    outside.plant(run / name)
    if kind == "missing":
        shutil.rmtree(outside.path) if outside.path.is_dir() else outside.path.unlink()
    refused(["export", str(run), "--format", "safetensors"], run / name, capsys)
    if kind == "missing":
        assert not outside.path.exists()
    else:
        outside.check()


@pytest.mark.parametrize("name", ["report", "report/index.html"])
def test_report_refuses_a_link(name, run, outside, capsys):
    outside.plant(run / name)
    refused(["report", str(run)], run / name, capsys)
    outside.check()


@pytest.mark.parametrize("name", ["episodes", "episodes/final.safetensors", "videos", "videos/final.mp4"])
def test_video_refuses_a_link(name, run, outside, capsys):
    outside.plant(run / name)
    refused(["video", str(run), "--episodes", "1"], run / name, capsys)
    outside.check()


def test_a_folder_without_an_identity_is_no_run(run, outside, capsys):
    """It would not be known where the links of the user end."""
    (run / "run.json").unlink()
    outside.plant(run / "exports")
    assert cli.main(["export", str(run), "--format", "safetensors"]) == 2
    assert "run.json" in capsys.readouterr().err
    outside.check()


# --- Links that appear while a run goes on ---


@pytest.mark.parametrize("name", ["config.yaml", "run.json"])
def test_the_name_under_which_a_file_is_written_cannot_be_known(name, run, outside):
    """Once it was `.NAME.partial`: a link of this name got what the file was to hold."""
    outside.plant(run / f".{name}.partial")
    files.write_whole(run / name, b"new")
    outside.check()
    assert (run / name).read_bytes() == b"new"


@pytest.mark.parametrize(
    "act",
    [
        lambda path: files.write_whole(path / "file", b"new"),
        lambda path: files.write(path / "new", [b"new"]),
        lambda path: files.make_folder(path / "new"),
        lambda path: files.make_folder(path),
        lambda path: files.cut(path / "own", 0),
        lambda path: files.remove(path / "own"),
        lambda path: files.rename(path / "own", path.parent / "taken"),
        lambda path: files.rename(path.parent / "config.yaml", path / "own"),
        lambda path: files.sync_folder(path),
        lambda path: files.open_file(path / "own", os.O_WRONLY | os.O_TRUNC),
        lambda path: files.remove(path),
        lambda path: files.cut(path, 0),
        lambda path: files.write_whole(path, b"new"),
        lambda path: files.open_file(path, os.O_WRONLY | os.O_CREAT),
    ],
)
def test_no_operation_goes_through_a_link(act, run, outside):
    outside.plant(link := run / "some")
    with pytest.raises(files.LinkError, match=f"^{link}: is a link"):
        act(link)
    outside.check()


def test_a_link_that_is_planted_later_keeps_a_checkpoint_from_being_written(run, outside):
    checkpoints = Checkpoints(run)
    (run / "checkpoints" / "blocks" / ("0" * 64)).write_bytes(b"a piece that no checkpoint names")
    outside.plant(run / "checkpoints" / "blocks")
    with pytest.raises(files.LinkError, match="blocks: is a link"):
        checkpoints.save(snapshot(600, 512))
    checkpoints.drop_after(checkpoints.steps()[0])
    outside.check()


def test_what_a_crash_leaves_half_written_is_removed_by_the_next_resume(run):
    for folder in (run, run / "policies"):
        (folder / f"{files.PARTIAL}12ab-file").write_bytes(b"{")
    trainer = Trainer.resume(run, verbose=False)
    trainer.record.folder.close()
    assert not list(run.rglob(".*"))


# --- The user's own links ---


def test_links_above_the_run_folder_are_followed(run, tmp_path, monkeypatch, capsys):
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path / "runs")
    (tmp_path / "newest").symlink_to(run)
    assert cli.main(["resume", str(linked / "run"), "total_steps=640"]) == 0
    assert cli.main(["export", str(linked / "run"), "--format", "safetensors"]) == 0
    assert cli.main(["report", str(tmp_path / "newest")]) == 0
    assert (run / "exports" / "final_actor" / "final_actor.safetensors").is_file()
    assert (run / "report" / "index.html").is_file()
    monkeypatch.chdir(run)
    assert cli.main(["resume", "../run", "total_steps=704"]) == 0
