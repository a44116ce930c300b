"""Trackers of the user's own: every row arrives once, whatever happens, and training never waits for them."""

import errno
import threading
import time
from pathlib import Path

import pytest
from own_parts import FileTracker, heard

import ludus
from ludus.cli.main import main
from ludus.runs.folder import RunFolder, read_config
from ludus.runs.journal import read_journal
from ludus.runs.trackers import own, threaded
from ludus.runs.trackers.registry import _registered, complete_own, trackers
from ludus.runtime import user_code


class Shown:
    """Remembers what it is told; raises or waits if it is to."""

    def __init__(self):
        self.runs, self.rows, self.results = [], [], []
        self.trouble, self.knows = None, None
        self.gate = threading.Event()
        self.gate.set()

    def begin(self, run):
        self.runs.append(run)
        return self.knows

    def log(self, rows):
        self.gate.wait(20)
        if self.trouble:
            raise self.trouble
        self.rows += rows

    def end(self, result):
        self.results.append(result["status"])


def rows_from(first: int, count: int, loss: float = 0.5) -> list[dict]:
    numbers = range(first, first + count)
    return [
        {"kind": "train", "iteration": n, "steps": 8 * n, "loss": loss, "elapsed_seconds": 0.1 * n} for n in numbers
    ]


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path / "run")
    made.create()
    made.write_config({"env": "jax:CartPole-v1"})
    made.write_identity(status="running")
    made.append(rows_from(0, 6))
    yield made
    made.close()


def finished(folder: RunFolder, status: str = "finished") -> Path:
    folder.write_identity(status=status)
    folder.close()
    return folder.path


def sent(run: Path, tracker: Shown) -> int:
    return own.complete(run, "shown", tracker)


def numbers(tracker: Shown) -> list[int]:
    return [row["seq"] for row in tracker.rows]


def test_a_tracker_gets_the_journal_and_how_it_ended(tmp_path):
    tracker = Shown()
    ppo = ludus.PPO(batch_size=64, minibatch_size=64, epochs_per_update=1)
    options = ludus.TrackingOptions(tensorboard=False, own=[tracker])
    settings = ludus.Settings(verbose=False, eval_frequency=2, eval_episodes_final=2, tracking=options)
    trainer = ludus.Trainer(ppo, ludus.make_env("CartPole-v1", 4), settings, run_dir=tmp_path / "run")
    trainer.train(total_steps=256)
    assert tracker.rows == [row | {"seq": number} for number, row in enumerate(read_journal(tmp_path / "run"))]
    assert {row["kind"] for row in tracker.rows} == {"train", "evaluation"} and tracker.results == ["finished"]
    (told,) = tracker.runs
    assert told["config"] == read_config(tmp_path / "run") and (told["name"], told["rows"]) == ("run", 0)
    count = len(tracker.rows)
    trainer.train(total_steps=512)  # goes on: what it has it does not get again
    assert numbers(tracker) == list(range(len(read_journal(tmp_path / "run"))))
    assert len(tracker.rows) > count and [run["rows"] for run in tracker.runs] == [0, count]


def test_rows_that_were_taken_are_not_sent_again(folder):
    tracker = Shown()
    sender = own.OwnSender(folder.path, "shown", tracker)
    while sender.advance():
        pass
    sender.close()
    folder.append(rows_from(6, 2))
    run = finished(folder)
    assert sent(run, tracker) == 8 and sent(run, tracker) == 8
    assert numbers(tracker) == list(range(8)) and [told["rows"] for told in tracker.runs] == [0, 6, 8]


def test_an_outage_leaves_no_gap_and_no_double_and_is_said_once(folder, monkeypatch):
    monkeypatch.setattr(own, "FIRST_PAUSE", 0.01)
    said, tracker = [], Shown()
    tracker.trouble = ConnectionError("no route to host")
    follower = own.follow("shown", tracker, said.append)
    follower.begin(folder)
    for n in range(6, 16):
        folder.append(rows_from(n, 1))
        follower.wake()
        time.sleep(0.02)
    assert said == ["tracker shown: raised ConnectionError: no route to host; training goes on, the journal has it all"]
    tracker.trouble = None
    finished(folder)
    follower.end()
    assert numbers(tracker) == list(range(16)) and len(said) == 1 and tracker.results == ["finished"]


def test_one_that_hangs_is_not_waited_for_long_and_ludus_track_sends_the_rest(folder, monkeypatch):
    monkeypatch.setattr(threaded, "LAST_SECONDS", 0.2)
    said, tracker = [], Shown()
    tracker.gate.clear()
    follower = own.follow("shown", tracker, said.append)
    follower.begin(folder)
    follower.wake()
    run, began = finished(folder), time.monotonic()
    follower.end()
    assert time.monotonic() - began < 2 and tracker.rows == []
    assert said == ["tracker shown: the last rows take too long; ludus track RUN sends the rest"]
    with pytest.raises(ludus.LudusError, match="tracker shown: another thread or process is sending this run"):
        sent(run, Shown())
    tracker.gate.set()
    follower._thread.join(10)
    assert sent(run, tracker) == 6 and numbers(tracker) == list(range(6))


def killed(folder: RunFolder, tracker: Shown, monkeypatch) -> None:
    """Send, and die between the tracker's answer and the note of it."""

    def die(*_):
        raise KeyboardInterrupt

    sender = own.OwnSender(folder.path, "shown", tracker)
    with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
        broken.setattr(sender.files, "add", die)
        sender.advance()
    sender.close()


def test_only_what_was_on_its_way_in_a_crash_comes_again_with_the_same_numbers(folder, monkeypatch):
    tracker = Shown()
    killed(folder, tracker, monkeypatch)
    folder.append(rows_from(6, 2))
    assert sent(finished(folder), tracker) == 8
    assert numbers(tracker) == [*range(6), *range(8)]
    assert tracker.rows[:6] == tracker.rows[6:12]


@pytest.mark.parametrize(("knows", "expected"), [(6, range(6, 8)), (4, range(4, 8)), (0, range(8)), (99, range(6, 8))])
def test_one_that_knows_how_much_it_has_gets_nothing_twice(folder, monkeypatch, knows, expected):
    tracker = Shown()
    killed(folder, tracker, monkeypatch)
    folder.append(rows_from(6, 2))
    run = finished(folder)
    tracker.rows, tracker.knows = [], knows
    assert sent(run, tracker) == 8 and numbers(tracker) == list(expected)
    tracker.rows, tracker.knows = [], None
    assert sent(run, tracker) == 8 and tracker.rows == []


def test_one_that_has_lost_rows_gets_them_again(folder):
    run, tracker = finished(folder), Shown()
    sent(run, tracker)
    tracker.rows, tracker.knows = [], 2
    assert sent(run, tracker) == 6 and numbers(tracker) == [2, 3, 4, 5]


def test_rows_taken_back_that_come_out_the_same_are_not_sent_again(folder):
    tracker = Shown()
    sender = own.OwnSender(folder.path, "shown", tracker)
    while sender.advance():
        pass
    text = (folder.path / "metrics.jsonl").read_bytes()
    folder.journal.cut(4, len(b"\n".join(text.split(b"\n")[:4])) + 1)
    later = [{**row, "elapsed_seconds": 99.0} for row in rows_from(4, 3)]  # how long it took is no difference
    folder.append(later)
    while sender.advance():
        pass
    sender.close()
    assert numbers(tracker) == list(range(7)) and len(tracker.runs) == 1


@pytest.mark.parametrize("is_sent", [True, False])
def test_rows_that_came_out_differently_belong_to_another_run(folder, monkeypatch, is_sent):
    """Also rows that were on their way when the process was killed: they may have arrived."""
    tracker = Shown()
    if is_sent:
        sender = own.OwnSender(folder.path, "shown", tracker)
        while sender.advance():
            pass
        sender.close()
    else:
        killed(folder, tracker, monkeypatch)
    text = (folder.path / "metrics.jsonl").read_bytes()
    folder.journal.cut(4, len(b"\n".join(text.split(b"\n")[:4])) + 1)
    folder.append(rows_from(4, 3, loss=0.25))
    tracker.rows = []
    assert sent(finished(folder), tracker) == 7
    first, last = tracker.runs[0]["id"], tracker.runs[-1]
    assert last["id"] == f"{first}-2" and last["continues"] == first and last["rows"] == 0
    assert numbers(tracker)[-7:] == list(range(7)) and tracker.results[-2:] == ["superseded", "finished"]


def test_a_damaged_row_is_passed_over(folder):
    path = folder.path / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")
    run, tracker = finished(folder), Shown()
    path.write_bytes(b"\n".join([*lines[:2], lines[2].replace(b"0.5", b"0.7"), *lines[3:]]))
    assert sent(run, tracker) == 6 and numbers(tracker) == [0, 1, 3, 4, 5]


def test_a_killed_run_is_said_to_be_killed(folder):
    folder.close()
    tracker = Shown()
    sent(folder.path, tracker)
    assert tracker.results == ["killed"]


def test_a_place_where_no_cursor_can_be_written_costs_one_line(folder, monkeypatch):
    said = []
    follower = own.follow("shown", Shown(), said.append)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(own.files, "make_folder", full)
    follower.begin(folder)
    follower.wake()
    finished(folder)
    follower.end()
    assert len(said) == 1 and "No space left on device" in said[0] and "ludus track RUN sends the rest" in said[0]


# How it is named

FEW = ["env=CartPole-v1", "num_envs=4", "algorithm.batch_size=64", "algorithm.minibatch_size=64", "eval_frequency=0",
       "eval_episodes_final=2", "verbose=false", "record_behaviour=false", "tracking.tensorboard=false"]  # fmt: skip


def test_on_the_command_line_it_is_followed_by_its_name_and_only_if_it_was_used(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(user_code, "_followed", {})
    given = "tracking.own=[{name: own_parts:FileTracker, file: told.jsonl}]"
    assert main(["train", *FEW, "total_steps=128", "run_dir=run", given]) == 0
    assert read_config("run")["tracking"]["own"] == [{"name": "own_parts:FileTracker", "file": "told.jsonl"}]
    assert main(["resume", "run", "total_steps=256"]) == 0
    told = heard(Path("told.jsonl"))
    last = max(number for number, (what, _) in enumerate(told) if what == "begin")
    # The evaluation at the end of the first part was taken back: what is another run now has all rows.
    assert told[last][1]["continues"] == told[0][1]["id"] != told[last][1]["id"]
    journal = [row | {"seq": number} for number, row in enumerate(read_journal("run"))]
    assert [row for what, row in told[last:] if what == "row"] == journal
    assert [value for what, value in told if what == "end"][-1] == "finished"

    monkeypatch.setattr(user_code, "_followed", {})
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "stranger"))
    capsys.readouterr()
    for verb in (["resume", "run", "total_steps=512"], ["track", "run"]):
        assert main(verb) == 2
        assert "names code that you have not used before, own_parts:FileTracker" in capsys.readouterr().err
    assert main(["resume", "run", "total_steps=384", "tracking.own=[]"]) == 0  # nothing of it is imported
    assert user_code._followed == {}


def test_an_object_must_be_passed_again(tmp_path):
    class Local(Shown):
        """Nobody can import it."""

    ppo = ludus.PPO(batch_size=64, minibatch_size=64, epochs_per_update=1)
    options = ludus.TrackingOptions(tensorboard=False, own=[Local()])
    quiet = {"verbose": False, "eval_frequency": 0, "eval_episodes_final": 0, "record_behaviour": False}
    settings = ludus.Settings(**quiet, tracking=options)
    ludus.Trainer(ppo, ludus.make_env("CartPole-v1", 4), settings, run_dir=tmp_path / "r").train(total_steps=64)
    with pytest.raises(ludus.LudusError, match=r"tracking.own=object:.*Local: was made in Python: pass it again"):
        ludus.Trainer.resume(tmp_path / "r", verbose=False)
    again = Local()
    ludus.Trainer.resume(tmp_path / "r", verbose=False, total_steps=128, **{"tracking.own": [again]}).train()
    assert numbers(again) == [1] and again.runs[0]["rows"] == 1  # the cursor is the same one's


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("own_parts:FileTracker", "tracking.own='own_parts:FileTracker': must be a list"),
        ([{"file": "x"}], "must be module:Name, or {name: module:Name, argument: value}"),
        ([{"name": "m:N", "api_key": "abcdef"}], "looks like a secret"),
    ],
)
def test_what_can_be_no_tracker_is_refused_at_once(given, message):
    with pytest.raises(ludus.LudusError) as caught:
        ludus.TrackingOptions(own=given)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["wandb"], "tracking.own=wandb: is not known here; your own is written my_module:Name"),
        (["own_parts:Missing"], "tracking.own=own_parts:Missing: the module own_parts has no Missing"),
        (["no_such_module:T"], "tracking.own=no_such_module:T: there is no module no_such_module"),
        (["own_parts:Halving"], "tracking.own=own_parts:Halving: has no begin; a tracker has begin(run)"),
        ([{"name": "own_parts:FileTracker", "fil": "x"}], "tracking.own=own_parts:FileTracker: cannot be made (TypeE"),
        ([FileTracker("a"), FileTracker("b")], "tracking.own=own_parts:FileTracker: stands there twice"),
    ],
)
def test_what_is_no_tracker_is_refused_before_training(given, message):
    with pytest.raises(ludus.LudusError) as caught:
        trackers(ludus.TrackingOptions(tensorboard=False, own=given), print)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_registered_tracker_has_its_name(folder):
    try:
        ludus.register_tracker("shown", Shown)
        ludus.register_tracker("shown", Shown)  # as a notebook's cell that is run again
        with pytest.raises(ludus.LudusError, match="register_tracker: 'shown' stands for Shown already"):
            ludus.register_tracker("shown", FileTracker)
        with pytest.raises(ludus.LudusError, match="register_tracker: 'my:own' must be a name without a colon"):
            ludus.register_tracker("my:own", Shown)
        with pytest.raises(ludus.LudusError, match="must be a class or a function"):
            ludus.register_tracker("object", Shown())
        assert complete_own(finished(folder), ["shown"]) == {"shown": 6}
    finally:
        _registered.pop("shown", None)


def test_without_a_folder_there_is_nothing_to_track():
    settings = ludus.Settings(verbose=False, tracking=ludus.TrackingOptions(own=[Shown()]))
    trainer = ludus.Trainer(ludus.PPO(), ludus.make_env("CartPole-v1"), settings)
    with pytest.raises(ludus.LudusError, match=r"tracking\.own: is made from what the run writes down; give run_dir"):
        trainer.train(total_steps=64)
