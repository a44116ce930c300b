"""The journal: what is written is read, what has changed since is noticed, and what was taken back is told."""

import json
import math
import os
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import GOLDEN
from run_folders import evaluation_row, learning_rows, make_run, train_row

import ludus
from ludus.report.html.make import make_report
from ludus.report.tables import runs_table
from ludus.runs import journal, table
from ludus.runs.folder import RunFolder
from ludus.runs.journal import Journal, JournalReader, Position, TakenBackError, line_of, read_journal, row_of
from ludus.runs.reader import Returns, list_runs
from ludus.runs.summary import Story
from ludus.runs.trackers.mlflow.names import Translator
from ludus.runs.trackers.tensorboard import complete
from ludus.runtime import secrets
from ludus.types import LudusError

ROW = {"kind": "train", "steps": 4096, "policy_loss": -0.012345678806304932, "info/größe/mean": 1e-05}


def with_checksums(run, rows) -> None:
    (run / journal.JOURNAL).write_bytes(b"".join(line_of(i, row) for i, row in enumerate(rows)))


# A row and its line


def test_a_row_is_a_line_with_its_number_and_its_checksum():
    line = line_of(7, ROW)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert json.loads(line) == {"seq": 7, **ROW, "crc": line[-11:-3].decode()}
    assert row_of(line[:-1]) == row_of(line) == {"seq": 7, **ROW}


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=300, deadline=None)
def test_numbers_are_read_as_they_were(value):
    read = row_of(line_of(0, {"x": value})[:-1])["x"]
    assert read == value and math.copysign(1.0, read) == math.copysign(1.0, value)


def test_every_byte_that_has_changed_is_noticed():
    line = line_of(12, ROW)[:-1]
    for position in range(len(line)):
        for byte in {*b' 0123456789"{},:', line[position] ^ 1, line[position] ^ 128} - {line[position], ord("\n")}:
            changed = line[:position] + bytes([byte]) + line[position + 1 :]
            with pytest.raises(ValueError):
                row_of(changed)
    for cut in (*range(1, 30), len(line) - 1):
        with pytest.raises(ValueError):
            row_of(line[:-cut])


def test_rows_of_earlier_versions_have_no_checksum_and_are_read():
    assert row_of(b'{"seq": 3, "kind": "train", "steps": 4}') == {"seq": 3, "kind": "train", "steps": 4}
    for run in sorted(GOLDEN.glob("run-*")):
        lines = (run / journal.JOURNAL).read_text().splitlines()
        assert read_journal(run) == list(map(json.loads, lines)) and lines
        assert table.read(run).damaged == 0


def test_what_json_does_not_know_is_made_plain():
    odd = {"single": np.float32(0.5), "list": [math.nan, 1.0], "whole": 2**80, "name\ud800": 1.0, "what": Journal}
    assert row_of(line_of(0, odd)[:-1]) == {
        "seq": 0, "single": 0.5, "list": [None, 1.0], "whole": float(2**80), "name?": 1.0, "what": str(Journal),
    }  # fmt: skip


def test_a_secret_is_not_written_and_its_row_is_whole(monkeypatch):
    monkeypatch.setattr(secrets, "_values", {"s3cret": "${oc.env:NAME}"})
    line = line_of(0, {"text": "s3cret"})
    assert b"s3cret" not in line and row_of(line[:-1]) == {"seq": 0, "text": "${oc.env:NAME}"}


# Every reader notices


@pytest.fixture
def flipped(tmp_path):
    """A run whose best evaluation, 10, was made a 90 by a failing disk."""
    run = make_run(tmp_path / "runs" / "run")
    rows = [train_row(i, episode_return_mean=1.0, policy_loss=0.5) for i in (1, 2, 3)]
    with_checksums(run, [*rows, evaluation_row(3, 10.0), evaluation_row(3, 5.0)])
    text = (run / journal.JOURNAL).read_bytes()
    assert text.count(b'"eval_return_mean":10.0') == 1
    (run / journal.JOURNAL).write_bytes(text.replace(b'"eval_return_mean":10.0', b'"eval_return_mean":90.0'))
    return run


def test_a_flipped_digit_is_never_shown_and_the_row_is_named(flipped):
    (row,) = list_runs(flipped.parent)
    assert (row.best_return, row.damaged_rows, row.steps) == (5.0, 1, 3072)
    assert runs_table([row]).endswith("finished, 1 damaged row")
    story = Story.read(flipped)
    assert story.journal.damaged == 1 and story.best == (3072.0, 5.0)
    assert "1 damaged line of the journal was left out" in make_report([flipped]).page.read_text()
    with pytest.raises(LudusError, match=r"metrics\.jsonl: row 3 is damaged \(its checksum does not fit"):
        read_journal(flipped)


def test_a_flipped_digit_is_sent_nowhere(flipped):
    reader, translator = JournalReader(flipped / journal.JOURNAL), Translator(0)
    rows = reader.read_rows()
    assert rows[3] == {"seq": 3} and reader.damaged == 1
    assert 90.0 not in [metric.value for row in rows for metric in translator.metrics(row)]
    said = []
    assert complete(flipped, said.append) == 5 and "1 rows of the journal are damaged" in said[0]


def test_the_steps_of_a_run_that_is_watched_are_not_those_of_a_flipped_row(tmp_path):
    run = make_run(tmp_path / "run")
    with_checksums(run, learning_rows(5))
    path = run / journal.JOURNAL
    path.write_bytes(path.read_bytes().replace(b'"steps":5120', b'"steps":9120'))
    returns = Returns(path)
    returns.look()
    assert returns.steps == 4096


# Reading on


def test_reading_goes_on_from_a_place(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "MOST_LINE", 1500)
    run = make_run(tmp_path / "run")
    with_checksums(run, rows := learning_rows(40))
    path, position, seen = run / journal.JOURNAL, Position(), []
    while some := (reader := JournalReader(path, position)).read_rows():  # another process, each time
        seen += some
        position = reader.position
        assert position.rows == len(seen)
    assert seen == [{"seq": i, **row} for i, row in enumerate(rows)]
    assert position.offset == path.stat().st_size


def test_a_place_that_is_no_longer_there_is_told(tmp_path):
    run = make_run(tmp_path / "run")
    with_checksums(run, learning_rows(40))
    path = run / journal.JOURNAL
    reader = JournalReader(path)
    reader.read_rows()
    end, text = reader.position, path.read_bytes()
    for other in (text[:-1], text[:300], b"", text[:-30] + b"?" + text[-29:], text[: len(text) // 2] * 2):
        path.write_bytes(other)
        with pytest.raises(TakenBackError):
            JournalReader(path, end).read_lines()
    path.write_bytes(text)
    assert JournalReader(path, end).read_lines() == []


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_a_journal_that_grows_by_pieces_is_read_as_a_whole_one(tmp_path_factory, seed):
    chance = random.Random(seed)
    path = tmp_path_factory.mktemp("grows") / journal.JOURNAL
    lines = [bytes(chance.choices(b"abc", k=chance.choice([0, 1, 50, 400]))) for _ in range(60)]
    text, reader, read = b"\n".join(lines) + b"\nunfinished", JournalReader(path), []
    with pytest.MonkeyPatch.context() as patch, path.open("wb") as file:
        patch.setattr(journal, "MOST_LINE", 100)
        while text:
            size = chance.randint(1, 300)
            file.write(text[:size])
            file.flush()
            text = text[size:]
            while some := reader.read_lines():
                read += some
    assert read == [line if len(line) <= 100 else journal.TOO_LONG for line in lines]
    assert (reader.position.rows, reader.unfinished) == (60, b"unfinished")


# Writing


def test_a_journal_that_was_closed_goes_on(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.append([train_row(1)])
    folder.close()
    folder.append([train_row(2), train_row(3)])
    folder.close()
    assert read_journal(folder.path) == [{"seq": i, **train_row(i + 1)} for i in range(3)]
    assert (folder.journal.rows, folder.journal.bytes) == (3, (folder.path / journal.JOURNAL).stat().st_size)


def test_rows_are_taken_back_by_their_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "PIECE", 100)
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.write_identity(status="running")
    folder.append([train_row(i) for i in range(1, 8)])
    size = folder.journal.bytes
    folder.append([train_row(8)])
    folder.close()
    again = RunFolder.reopen(tmp_path / "run")
    for rows, wrong in ((6, size), (8, size), (7, size - 1), (7, 10 * size)):
        with pytest.raises(LudusError, match="is shorter or other than it was"):
            again.journal.cut(rows, wrong)
    again.journal.cut(7, size)
    again.append([train_row(9)])
    again.close()
    assert [row["iteration"] for row in read_journal(tmp_path / "run")] == [*range(1, 8), 9]
    again.journal.reopen()
    again.journal.cut(0, 0)
    again.close()
    assert os.path.getsize(tmp_path / "run" / journal.JOURNAL) == 0


@pytest.mark.slow
def test_every_row_of_a_run_has_a_checksum_that_fits(tmp_path):
    env = ludus.make_env("CartPole-v1", num_envs=4)
    ppo = ludus.PPO(batch_size=64, minibatch_size=64, epochs_per_update=1)
    options = {"health_frequency": 1, "record_episodes": True, "verbose": False}
    ludus.Trainer(ppo, env, ludus.Settings(**options), run_dir=tmp_path / "run").train(total_steps=320)
    lines = (tmp_path / "run" / journal.JOURNAL).read_bytes().splitlines()
    assert all(b',"crc":"' in line and journal.is_intact(line) for line in lines)
    rows = read_journal(tmp_path / "run")
    assert [row["seq"] for row in rows] == list(range(len(lines))) and len(rows) > 5
    assert all("crc" not in row for row in rows)
