"""What is left of a journal is found, whatever was done to it; and the rest is written without a word changed."""

import random

import pytest
from run_folders import learning_rows, make_run, train_row

import ludus
from ludus.runs.folder import RunFolder
from ludus.runs.journal import read_journal
from ludus.runs.journal_repair import Remains, is_whole, rebuild, remains
from ludus.runs.trackers.mlflow.sender import Sender
from ludus.runs.trackers.mlflow.store import Found

pytestmark = pytest.mark.requirement("S4.16")
ROWS = 40


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", learning_rows(ROWS)[:ROWS])


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (Remains(3, 0, 0, []), "3 of 3 rows are lost (0 to 2)"),
        (Remains(3, 2, 9, []), "1 of 3 rows is lost (2)"),
        (Remains(9, 2, 9, [(3, {}), (6, {}), (7, {})]), "4 of 9 rows are lost (2, 4 to 5, 8)"),
        (Remains(20, 0, 0, [(n, {}) for n in range(1, 20, 2)]), "10 of 20 rows are lost (0, 2, 4, 6, 8 and others)"),
        (Remains(3, 1, 9, [(1, {}), (2, {})]), "no row is lost, but there are others among them"),
    ],
)
def test_what_is_lost_is_said_in_a_few_words(left, told):
    assert str(left) == told


@pytest.mark.parametrize("seed", range(30))
def test_whatever_was_done_to_a_journal_the_rows_that_are_left_stay_as_they_were(run, seed):
    chance, journal, truth = random.Random(seed), run / "metrics.jsonl", read_journal(run)
    lines = journal.read_bytes().splitlines(keepends=True)
    rows = chance.randrange(1, ROWS + 1)
    size = sum(map(len, lines[:rows]))
    assert is_whole(run, rows, size)
    odd = [
        b"",
        b"{}\n",
        b"\n",
        b"[]\n",
        b"\xff\xfe\n",
        b'{"seq": 3, "x": NaN}\n',
        b'{"seq": true}\n',
        lines[0],
        lines[-1],
    ]
    harmed = set()
    for _ in range(chance.randrange(1, 5)):
        place = chance.randrange(rows)
        harmed.add(place)
        lines[place] = chance.choice(
            [*odd, lines[place][:-9] + b"\n", lines[place][:-1] + b" ", b"x" + lines[place], b"{}\n" + lines[place]]
        )
    data = b"".join(lines)
    journal.write_bytes(data)
    left = remains(run, rows)
    here = [*range(left.first), *(number for number, _ in left.later)]
    whole = set(range(rows)) - harmed - {place + 1 for place in harmed}  # a line without an end takes the next along
    assert whole <= set(here) and here == sorted(set(here)) and len(here) == left.num_left <= rows
    folder = RunFolder.reopen(run)
    ends = rebuild(folder, left)
    folder.append([train_row(99)])
    folder.close()
    expected = [{**truth[number], "seq": place} for place, number in enumerate(here)]
    assert read_journal(run) == [*expected, {"seq": len(here), **train_row(99)}]
    assert is_whole(run, len(here), ends[len(here)]) and ends[0] == 0
    for row in range(rows + 1):
        before = left.before(row)
        assert before == sum(number < row for number in here) and is_whole(run, before, ends[before])


def test_rows_that_came_after_the_checkpoint_are_none_of_it(run):
    left = remains(run, 10)
    assert (left.first, left.later) == (10, [])
    assert remains(run, 0) == Remains(0, 0, 0, [])


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_journal_is_not_read(run, make):
    (run / "metrics.jsonl").unlink()
    make(run / "metrics.jsonl")
    for look in (lambda: remains(run, 3), lambda: is_whole(run, 3, 100)):
        with pytest.raises(OSError):
            look()


def test_a_journal_that_cannot_be_written_is_said(run, monkeypatch):
    import errno
    import os

    (run / "metrics.jsonl").write_bytes(b"".join((run / "metrics.jsonl").read_bytes().splitlines(keepends=True)[2:]))
    folder = RunFolder.reopen(run)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ludus.LudusError, match=r"metrics.jsonl: cannot be written \(No space left on device\)"):
        rebuild(folder, remains(run, ROWS))
    monkeypatch.undo()
    folder.close()


class Memory:
    """Stands for an MLflow store: it remembers points and tags, and answers at once."""

    name = "memory"

    def __init__(self):
        self.points, self.tags = {}, {}

    def __call__(self, runs):
        return self

    def experiment(self, name):
        return "1"

    def find(self, experiment, identity):
        return [self.get(run) for run in self.points]

    def get(self, run):
        values = {"id": run, "started": 0, "is_empty": not self.points[run], "parameters": {}, "artifacts": ""}
        return Found(**{name: values[name] for name in Found._fields})

    def create(self, experiment, name, started, tags):
        run = f"{len(self.points):032x}"
        self.points[run], self.tags[run] = [], dict(tags)
        return self.get(run)

    def log(self, run, metrics):
        self.points[run] += [(metric.key, metric.step) for metric in metrics]

    def describe(self, run, parameters, tags):
        self.tags[run] |= tags

    def set_status(self, run, status, ended=None):
        pass


def test_mlflow_gets_what_is_left_once_and_what_came_before_stays_where_it_is(run):
    store, lines = Memory(), (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    first = Sender(run, store)
    while first.send():
        pass
    (run / "metrics.jsonl").write_bytes(b"".join([*lines[:5], *lines[9:20]]))
    folder = RunFolder.reopen(run)
    rebuild(folder, remains(run, ROWS))
    folder.append([train_row(99, policy_loss=1.0)])
    folder.close()
    again = Sender(run, store)
    while again.send():
        pass
    old, new = store.points
    losses = [row["steps"] for row in read_journal(run) if "policy_loss" in row]
    sent = [step for key, step in store.points[new] if key == "policy_loss"]
    assert sent == losses and len(sent) == len(set(sent)) and 1024 * 99 in sent
    assert len({step for key, step in store.points[old] if key == "policy_loss"}) > len(sent)
    assert store.tags[new]["ludus.continues"] == old and store.tags[old]["ludus.superseded_by"] == new
