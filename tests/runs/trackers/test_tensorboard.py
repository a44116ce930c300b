"""What TensorBoard's own readers find in a run: every figure of the journal once, whatever happened to the run."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as LiveAccumulator
from tensorboard.plugins.hparams import metadata as hparams

import ludus
from ludus.runs.folder import RunFolder
from ludus.runs.journal import read_journal
from ludus.runs.trackers import event_file, tensorboard
from ludus.runs.trackers.base import TrackingOptions
from ludus.runs.trackers.tensorboard import EventWriter, complete, tag_of, tracker
from ludus.training.checkpoint_writer import CheckpointOptions

pytestmark = pytest.mark.slow

TINY = {"batch_size": 64, "minibatch_size": 32, "epochs_per_update": 2}
UNSHOWN = ("seq", "kind", "steps")
COUNTS = ("iteration", "episodes", "updates", "elapsed_seconds")
ALL = {"scalars": 0, "tensors": 0, "histograms": 0, "images": 0}


def make_trainer(run=None, **options) -> ludus.Trainer:
    options = {"eval_frequency": 4, "health_frequency": 2, "verbose": False} | options
    trainer = ludus.Trainer(
        ludus.PPO(**TINY), ludus.make_env("CartPole-v1", num_envs=4), ludus.Settings(**options), run_dir=run
    )
    trainer.final_episodes = 5
    return trainer


def loaded(run: Path) -> EventAccumulator:
    found = EventAccumulator(str(run / "tensorboard"), size_guidance=ALL)
    found.Reload()
    return found


def shown(found) -> Counter:
    """Every scalar: its tag, step and value, and how often it is there."""
    tags = found.Tags()["scalars"]
    return Counter((tag, point.step, point.value) for tag in tags for point in found.Scalars(tag))


def expected(run: Path) -> Counter:
    points: Counter = Counter()
    for row in read_journal(run):
        left_out = UNSHOWN + (COUNTS if row["kind"] == "evaluation" else ())
        numbers = {name: x for name, x in row.items() if name not in left_out and isinstance(x, int | float)}
        points.update((tag_of(name), row["steps"], float(np.float32(x))) for name, x in numbers.items())
    return points


def histograms(run: Path) -> Counter:
    rows = read_journal(run)
    return Counter((name, row["steps"]) for row in rows for name, x in row.items() if isinstance(x, dict))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "finished"
    make_trainer(run).train(total_steps=640)
    return run


# What is shown


@pytest.mark.requirement("S2.19", "S4.17", "S4.18")
def test_every_figure_of_the_journal_is_there_exactly_once(finished):
    found = loaded(finished)
    assert shown(found) == expected(finished)
    got = Counter((tag, point.step) for tag in found.Tags()["histograms"] for point in found.Histograms(tag))
    assert got == histograms(finished) and got
    (path,) = (finished / "tensorboard").iterdir()
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.requirement("S4.17", "S2.18")
def test_figures_are_in_groups(finished):
    tags = set(loaded(finished).Tags()["scalars"])
    wanted = {
        "train/policy_loss", "train/value_loss", "train/approx_kl", "train/entropy", "train/learning_rate",
        "train/gradient_norm", "rollout/episode_return_mean", "rollout/episode_length_mean", "rollout/reward_mean",
        "evaluation/return_mean", "evaluation/length_mean", "runtime/steps_per_second", "gradient_norm/actor",
        "update_norm/critic", "parameter_norm/actor_torso/layers/0", "moment_norm/adam_second/critic_head",
    }  # fmt: skip
    assert wanted <= tags
    assert min(tags).startswith("evaluation/"), "what one looks for comes first"
    assert tag_of("info/collision/mean") == "metrics/collision/mean"
    assert tag_of("seconds/update") == "runtime/seconds/update"
    assert tag_of("success_rate") == "rollout/success_rate"


def test_an_event_is_at_its_rows_step_and_time(finished):
    started = json.loads((finished / "run.json").read_text())["started"]
    rows = [row for row in read_journal(finished) if row["kind"] == "train"]
    points = loaded(finished).Scalars("train/entropy")
    assert [point.step for point in points] == [row["steps"] for row in rows]
    assert [point.wall_time for point in points] == [started + row["elapsed_seconds"] for row in rows]


def test_a_histogram_is_the_journals(finished):
    row = next(row for row in read_journal(finished) if "histogram/gradient" in row)
    point = loaded(finished).Histograms("histogram/gradient")[0].histogram_value
    assert point.bucket == row["histogram/gradient"]["counts"]
    assert (point.min, point.max) == (row["histogram/gradient"]["low"], row["histogram/gradient"]["high"])


def test_the_configuration_is_a_text_and_settings_for_the_dashboard(finished):
    found = loaded(finished)
    (text,) = found.Tensors("config/text_summary")
    assert (finished / "config.yaml").read_text() in text.tensor_proto.string_val[0].decode()
    content = found.SummaryMetadata(hparams.SESSION_START_INFO_TAG).plugin_data.content
    settings = hparams.parse_session_start_info_plugin_data(content).hparams
    assert settings["algorithm.learning_rate"].number_value == pytest.approx(3e-4)
    assert settings["env"].string_value == "jax:CartPole-v1"
    assert settings["algorithm.anneal_learning_rate"].bool_value is True
    assert hparams.SESSION_END_INFO_TAG in found.Tags()["tensors"], "it has ended well"


def test_a_runs_newest_film_is_shown_once(finished, tmp_path):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "videos").mkdir()
    film = b"GIF89a" + bytes([16, 0, 8, 0]) + bytes(20)
    (run / "videos" / "best.gif").write_bytes(film)
    (run / "videos" / "other.gif").write_bytes(b"no picture")
    os.utime(run / "videos" / "other.gif", (0, 0))
    later = time.time() + 10
    os.utime(run / "videos" / "best.gif", (later, later))
    assert complete(run) == 0
    (image,) = loaded(run).Images("video")
    assert (image.encoded_image_string, image.width, image.height) == (film, 16, 8)
    for path in (run / "tensorboard").iterdir():
        os.utime(path, (later + 1, later + 1))
    assert complete(run) == 0
    assert len(loaded(run).Images("video")) == 1


# What happens to runs


def test_a_resumed_run_goes_on_in_another_file_and_what_was_taken_back_is_gone(tmp_path):
    run = tmp_path / "run"
    make_trainer(run, checkpoint=CheckpointOptions(every_iterations=3, keep_last=9)).train(total_steps=640)
    live = LiveAccumulator(str(run / "tensorboard"), size_guidance={"tensors": 0})
    live.Reload()
    resumed = ludus.Trainer.resume(run, start=384, total_steps=768, verbose=False)
    resumed.final_episodes = 5
    resumed.train()
    old, _ = sorted((run / "tensorboard").iterdir())
    assert old.stat().st_size == 0
    assert shown(loaded(run)) == expected(run)
    live.Reload()  # a reader that had seen what is no longer true
    steps = [point.step for point in live.Tensors("train/entropy")]
    assert steps == [row["steps"] for row in read_journal(run) if row["kind"] == "train"]
    cut_to(run, 2)
    assert complete(run) == 2
    assert shown(loaded(run)) == expected(run)


def cut_to(run: Path, rows: int) -> None:
    """Take back rows of a journal."""
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:rows]))


@pytest.mark.parametrize("rows", [0, 5])
def test_events_that_the_journal_has_no_row_for_are_gone(finished, tmp_path, rows):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    cut_to(run, rows)
    assert complete(run) == rows
    assert shown(loaded(run)) == expected(run)
    assert complete(run) == 0


def test_a_run_that_was_left_in_order_goes_on_in_its_file(tmp_path):
    run = tmp_path / "run"
    trainer = make_trainer(run)
    trainer.final_episodes = 0  # its row would be taken back
    trainer.train(total_steps=640)
    (path,) = (run / "tensorboard").iterdir()
    before, rows = path.read_bytes(), len(read_journal(run))
    resumed = ludus.Trainer.resume(run, total_steps=768, verbose=False)
    resumed.final_episodes = 5
    resumed.train()
    assert path.read_bytes().startswith(before) and len(read_journal(run)) > rows
    assert shown(loaded(run)) == expected(run)


def test_files_of_the_version_before_are_replaced(finished, tmp_path):
    """They have an event file for each time that the run was resumed, and none ends with a place of the journal."""
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (path,) = (run / "tensorboard").iterdir()
    os.truncate(path, path.stat().st_size - len(event_file.place(0, 0, 0, 0)))
    shutil.copy(path, path.with_name("events.out.tfevents.9999999998.000001.ludus"))
    assert complete(run) == len(read_journal(run))
    assert [path.name for path in whole_files(run)] == ["events.out.tfevents.9999999999.ludus"]
    assert shown(loaded(run)) == expected(run)


def test_a_file_that_is_written_anew_is_not_seen_before_it_is_whole(finished, tmp_path, monkeypatch):
    monkeypatch.setattr("ludus.runs.journal.MOST_LINE", 8000)  # a few rows at a time
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (old,) = (run / "tensorboard").iterdir()
    os.truncate(old, old.stat().st_size - 1)
    before, names = shown(loaded(run)), []
    writer = EventWriter(run)
    while writer.advance():
        names.append({path.name for path in (run / "tensorboard").iterdir()})
        assert shown(loaded(run)) in (before, expected(run))
    assert len(names) > 3 and all(old.name in some and len(some) == 2 for some in names[:-1])
    writer.close()
    assert shown(loaded(run)) == expected(run) and whole_files(run) != [old]


def test_a_process_that_is_killed_while_it_writes_anew_leaves_nothing_behind(finished, tmp_path, monkeypatch):
    monkeypatch.setattr("ludus.runs.journal.MOST_LINE", 8000)
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (old,) = (run / "tensorboard").iterdir()
    os.truncate(old, old.stat().st_size - 1)
    writer = EventWriter(run)
    writer.advance()
    writer._let_go()  # as the system does with the files of a process that is killed
    assert len(list((run / "tensorboard").iterdir())) == 2
    assert complete(run) == len(read_journal(run))
    assert len(whole_files(run)) == 1
    assert shown(loaded(run)) == expected(run)


def whole_files(run: Path) -> list[Path]:
    return [path for path in (run / "tensorboard").iterdir() if path.stat().st_size]


def test_events_of_rows_that_are_other_now_are_written_anew(finished, tmp_path):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows[4:]:
        row["elapsed_seconds"] += 100
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert complete(run) == len(rows)
    assert shown(loaded(run)) == expected(run)
    assert complete(run) == 0


def test_a_run_that_begins_again_leaves_nothing_of_before(finished, tmp_path):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    rows = [{**row, "elapsed_seconds": 9.0} for row in read_journal(run)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert complete(run) == len(rows)
    assert shown(loaded(run)) == expected(run)


def test_a_record_that_was_cut_short_is_written_again(finished, tmp_path):
    whole = next((finished / "tensorboard").iterdir())
    size, rows = whole.stat().st_size, len(read_journal(finished))
    for lost in (1, 3, 200, size // 3, size - 10, size - 1, size):
        run = Path(shutil.copytree(finished, tmp_path / str(lost)))
        os.truncate(run / "tensorboard" / whole.name, size - lost)
        assert 0 <= complete(run) <= rows
        assert shown(loaded(run)) == expected(run), lost
        assert complete(run) == 0


def test_a_run_that_had_no_tensorboard_gets_it_later(tmp_path):
    run = tmp_path / "run"
    make_trainer(run, tracking=TrackingOptions(tensorboard=False)).train(total_steps=128)
    assert not (run / "tensorboard").exists()
    assert complete(run) == len(read_journal(run))
    assert shown(loaded(run)) == expected(run)


KILLED = """
import sys, ludus
from pathlib import Path
from ludus.training.checkpoint_writer import CheckpointOptions
env = ludus.make_env("CartPole-v1", num_envs=4)
ppo = ludus.PPO(batch_size=64, minibatch_size=32, epochs_per_update=1)
options = CheckpointOptions(every_iterations=7)
run = Path(sys.argv[1])
if run.exists():
    trainer = ludus.Trainer.resume(run, verbose=False)
else:
    often = {"eval_frequency": 5, "health_frequency": 3}
    trainer = ludus.Trainer(ppo, env, ludus.Settings(checkpoint=options, verbose=False, **often), run_dir=run)
trainer.final_episodes = 5
trainer.train(total_steps=int(sys.argv[2]) if not trainer._source else None)
"""


@pytest.mark.requirement("S4.17")
def test_a_run_that_is_killed_and_resumed_has_no_doubled_or_crossed_curve(tmp_path):
    run, rng = tmp_path / "run", np.random.default_rng(0)
    for attempt in range(3):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(run), str(10**9)])
        enough, limit = (attempt + 1) * int(rng.integers(20, 60)), time.monotonic() + 120
        before = rows_in(run)
        while rows_in(run) < before + enough and time.monotonic() < limit and process.poll() is None:
            time.sleep(0.02)
        time.sleep(rng.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert shown(loaded(run)) - expected(run) == Counter(), "what is there is the journal's"
    resumed = ludus.Trainer.resume(run, total_steps=read_journal(run)[-1]["steps"] + 640, verbose=False)
    resumed.final_episodes = 5
    resumed.train()
    assert shown(loaded(run)) == expected(run)
    steps = [point.step for point in loaded(run).Scalars("train/entropy")]
    assert steps == sorted(set(steps))


def rows_in(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


# While it goes on


@pytest.mark.requirement("S4.17")
def test_curves_grow_while_training_goes_on(tmp_path):
    run, live = tmp_path / "run", []

    def watch(_) -> None:
        rows = rows_in(run)
        if rows < 4 or len(live) >= 3:
            return
        limit = time.monotonic() + 30
        while time.monotonic() < limit:
            is_begun = any((run / "tensorboard").glob("*"))
            points = is_begun and sum(tag == "train/entropy" for tag, _, _ in shown(loaded(run)).elements())
            if points and points >= trained(run) - 1:
                live.append(points)
                return
            time.sleep(0.05)

    make_trainer(run, eval_frequency=0).train(total_steps=2048, callback=watch)
    assert len(live) == 3 and live == sorted(live) and live[0] < live[-1] < trained(run)


def trained(run: Path) -> int:
    return sum(row["kind"] == "train" for row in read_journal(run))


def get(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


@pytest.mark.requirement("S2.19", "S4.17")
def test_tensorboard_itself_shows_the_runs(finished):
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(finished.parent), "--host", "127.0.0.1"]
    with subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            line = next(line for line in server.stderr if "http://" in line)
            url = "http://" + line.partition("http://")[2].split()[0].rstrip("/")
            name, limit = "finished/tensorboard", time.monotonic() + 60
            while name not in (tags := get(f"{url}/data/plugin/scalars/tags")) and time.monotonic() < limit:
                time.sleep(0.2)
            assert tags[name].keys() == set(loaded(finished).Tags()["scalars"])
            points = get(f"{url}/data/plugin/scalars/scalars?run={name}&tag=rollout%2Fepisode_return_mean")
            rows = [row for row in read_journal(finished) if "episode_return_mean" in row]
            assert [step for _, step, _ in points] == [row["steps"] for row in rows]
            text = get(f"{url}/data/plugin/text/text?run={name}&tag=config%2Ftext_summary")
            assert "CartPole" in text[0]["text"] and "<code" in text[0]["text"]
            assert name in get(f"{url}/data/plugin/histograms/tags")
            experiment = get(f"{url}/data/plugin/hparams/experiment?request=%7B%7D")
            assert {"algorithm.gamma", "env", "seed"} <= {info["name"] for info in experiment["hparamInfos"]}
            assert "evaluation/return_mean" in {info["name"]["tag"] for info in experiment["metricInfos"]}
        finally:
            server.terminate()


# When it cannot be written


class Said(list):
    def __call__(self, text: str) -> None:
        self.append(text)


def test_a_place_that_cannot_be_written_costs_one_line_and_no_training(tmp_path, monkeypatch):
    run = tmp_path / "run"
    trainer = make_trainer(run)
    said = Said()
    trainer.record.trackers = [tracker(said)]
    monkeypatch.setattr(tensorboard, "TENSORBOARD", "config.yaml")  # where there is a file already
    result = trainer.train(total_steps=640)
    assert result.steps == 640
    assert len(read_journal(run)) > 10
    assert said and all("config.yaml cannot be written" in line for line in said) and len(said) <= 2


def test_a_disk_that_is_full_for_a_while_leaves_no_gap(finished, tmp_path, monkeypatch):
    run = Path(shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("tensorboard")))
    write, left = os.write, [3]

    def full(descriptor: int, data: bytes) -> int:
        if "/tensorboard/" in os.readlink(f"/proc/self/fd/{descriptor}") and left[0]:
            left[0] -= 1
            write(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    writer = EventWriter(run)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            writer.advance()
    while writer.advance():
        pass
    writer.close()
    assert shown(loaded(run)) == expected(run)


def test_two_processes_never_write_at_once(finished, tmp_path):
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    writer = EventWriter(run)
    writer.advance()
    with pytest.raises(ludus.LudusError, match="another process is writing"):
        complete(run)
    writer.close()
    assert complete(run) == 0


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(ludus.LudusError, match="is not a run folder"):
        complete(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_never_raises(tmp_path):
    said = Said()
    made = tracker(said)
    made.end()
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.write_config({})
    folder.write_identity(status="running")
    made.begin(folder)
    folder.append([{"kind": "train", "steps": "nonsense", "elapsed_seconds": 1.0}])
    made.wake()
    made.end()
    assert said == []  # a row that cannot be shown is passed over
    (tmp_path / "run" / "run.json").write_text("{")
    made.begin(folder)
    made.end()
    assert len(said) == 1 and said[0].startswith("TensorBoard: ")


def test_training_needs_no_tensorboard():
    code = (
        "import sys, tempfile, ludus\n"
        "for name in ('tensorboard', 'tensorboardX', 'google.protobuf', 'torch'): sys.modules[name] = None\n"
        "env = ludus.make_env('CartPole-v1', num_envs=4)\n"
        "ppo = ludus.PPO(batch_size=64, minibatch_size=64, epochs_per_update=1)\n"
        "run = tempfile.mkdtemp() + '/run'\n"
        "settings = ludus.Settings(eval_frequency=0, verbose=False)\n"
        "ludus.Trainer(ppo, env, settings, run_dir=run).train(total_steps=64)\n"
        "import os; print(len(os.listdir(run + '/tensorboard')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "1", done.stderr


def test_the_command_brings_a_run_up_to_date(finished, tmp_path, monkeypatch, capsys):
    import importlib.util

    from ludus.cli.main import main

    run = Path(shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("tensorboard")))
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "mlflow" else find(name, *rest)
    )
    assert main(["track", str(run)]) == 0
    assert f"{len(read_journal(run))} rows were written" in capsys.readouterr().out
    assert shown(loaded(run)) == expected(run)
