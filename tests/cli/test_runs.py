"""`ludus runs` and `ludus compare`: what is listed, what is compared, and how every mistake is answered."""

import fcntl
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from run_folders import evaluation_row, learning_rows, make_run, train_row

from ludus.report.comparison import compare
from ludus.runs import table as journal
from ludus.runs.reader import list_runs
from ludus.types import LudusError

# --- ludus runs ---


@pytest.mark.requirement("S1.35")
def test_runs_are_listed_newest_first(run, tmp_path):
    rows = [train_row(1), evaluation_row(1, 20.5), train_row(2), evaluation_row(2, 11.0)]
    old = make_run(tmp_path / "runs" / "old", rows)
    new = make_run(tmp_path / "runs" / "sweep" / "gamma=0.9,seed=1", rows[:1], env="gym:LunarLander-v3", name="sac")
    for path, when in ((old, 1000), (new, 2000)):
        for file in path.iterdir():
            os.utime(file, (when, when))
    code, out, err = run("runs")
    assert (code, err) == (0, "")
    head, first, second = out.splitlines()
    assert head.split() == ["name", "environment", "algorithm", "steps", "best", "return", "status"]
    assert first.split() == ["sweep/gamma=0.9,seed=1", "gym:LunarLander-v3", "sac", "1,024", "finished"]
    assert second.split() == ["old", "jax:CartPole-v1", "ppo", "2,048", "20.50", "finished"]
    rows = json.loads(run("runs", "runs", "--json")[1])
    assert [(row["name"], row["steps"], row["best_return"]) for row in rows] == [
        ("sweep/gamma=0.9,seed=1", 1024, None),
        ("old", 2048, 20.5),
    ]


def test_a_run_whose_process_is_gone_was_killed(tmp_path):
    path = make_run(tmp_path / "run", [train_row(1)], status="running")
    assert list_runs(tmp_path)[0].status == "killed"
    holder = os.open(path / "metrics.jsonl", os.O_RDWR)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert list_runs(tmp_path)[0].status == "running"
    finally:
        os.close(holder)
    assert list_runs(tmp_path)[0].status == "killed"


def test_listing_does_not_hold_the_lock(tmp_path):
    path = make_run(tmp_path / "run", status="running")
    list_runs(tmp_path)
    holder = os.open(path / "metrics.jsonl", os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(holder)


def test_without_evaluations_the_best_return_is_that_of_training_and_says_so(run, tmp_path):
    rows = [train_row(1, episode_return_mean=-3.5), train_row(2, episode_return_mean=-1e3)]
    make_run(tmp_path / "runs" / "a", rows)
    out = run("runs")[1]
    assert "-3.50*" in out and out.splitlines()[-1].startswith("* the best iteration of training")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("run.json", "{", "run.json: is not readable JSON"),
        ("run.json", "[1]", "says nothing of a run"),
        ("config.yaml", "a: [", "config.yaml: is not readable YAML"),
        ("config.yaml", "- 1", "is not a configuration"),
        ("metrics.jsonl", None, "metrics.jsonl: cannot be read"),
        ("config.yaml", None, "is not a run folder"),
    ],
)
def test_a_damaged_folder_is_one_row_that_says_so(run, tmp_path, file, content, said):
    make_run(tmp_path / "runs" / "good", [train_row(1)])
    damaged = make_run(tmp_path / "runs" / "damaged", [train_row(1)])
    (damaged / file).unlink() if content is None else (damaged / file).write_text(content)
    code, out, err = run("runs")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert rows["good"].endswith("finished")
    assert re.search(f"damaged: .*{said}", rows["damaged"])


def test_a_journal_that_is_empty_cut_or_nonsense_is_listed(tmp_path):
    make_run(tmp_path / "empty")
    cut = make_run(tmp_path / "cut", [train_row(1), evaluation_row(1, 7.0)])
    with (cut / "metrics.jsonl").open("a") as file:
        file.write('{"seq": 2, "kind": "train", "st')
    noise = make_run(tmp_path / "noise")
    (noise / "metrics.jsonl").write_bytes(bytes(range(256)) * 9)
    rows = {row.name: row for row in list_runs(tmp_path)}
    assert (rows["empty"].steps, rows["empty"].best_return) == (0, None)
    assert (rows["cut"].steps, rows["cut"].best_return) == (1024, 7.0)
    assert rows["noise"].status == "damaged" and "no row that can be read" in rows["noise"].problem


def test_names_cannot_colour_the_terminal(run, tmp_path):
    make_run(tmp_path / "runs" / "a\x1b[31mred", [train_row(1)], env="jax:\x1b]0;title\x07")
    out = run("runs")[1]
    assert "\x1b" not in out and "\x07" not in out


def test_no_runs_and_no_folder(run, tmp_path):
    assert run("runs")[0] == 2 and run("runs", "nowhere")[2] == (
        "ludus: nowhere: is not a folder; give the one that holds your runs\n"
    )
    (tmp_path / "runs").mkdir()
    assert run("runs") == (0, "no runs in runs (ludus train makes one)\n", "")
    assert run("runs", "--json") == (0, "[]\n", "")


@pytest.mark.parametrize("words", [["runs", "."], ["compare", "a", "b"], ["runs", "--help"], ["compare", "--help"]])
def test_reading_runs_needs_no_jax(tmp_path, words):
    for i, name in enumerate("ab"):
        make_run(tmp_path / name, learning_rows(20), seed=i)
    code = "import sys, contextlib; from ludus.cli.main import main\n"
    code += f"with contextlib.suppress(SystemExit): main({words})\nprint('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


# --- ludus compare ---


def final(path, value: float, seed: int, **settings):
    rows = [
        train_row(1, entropy=0.5),
        evaluation_row(1, 2 * value),
        train_row(2, entropy=0.1),
        evaluation_row(2, value),
    ]
    return make_run(path, rows, seed=seed, **settings)


@pytest.mark.requirement("S1.35")
def test_seeds_are_taken_together_and_settings_that_differ_are_shown(run, tmp_path):
    for seed, value in enumerate((1.0, 2.0, 3.0, 100.0)):
        final(tmp_path / f"a{seed}", value, seed)
    final(tmp_path / "b", 7.0, 0, gamma=0.9)
    code, out, err = run("compare", *(tmp_path / name for name in ("a0", "b", "a1", "a2", "a3")), "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    first, second = told["groups"]
    assert first["seeds"] == [0, 1, 2, 3] and second["seeds"] == [0]
    score = first["metrics"]["final evaluation return"]
    assert score["iqm"] == 2.5 and score["runs"] == [1.0, 2.0, 3.0, 100.0]
    assert score["interval"][0] < 2.5 < score["interval"][1]
    assert second["metrics"]["final evaluation return"] == {"iqm": 7.0, "interval": None, "runs": [7.0]}
    assert first["metrics"]["best evaluation return"]["runs"] == [2.0, 4.0, 6.0, 200.0]
    assert first["metrics"]["entropy"]["iqm"] == 0.1
    assert told["differences"] == {"algorithm.gamma": [0.99, 0.9]}
    table = run("compare", *(tmp_path / name for name in ("a0", "b", "a1", "a2", "a3")))[1]
    assert re.search(r"^algorithm.gamma +0.99 +0.9$", table, re.MULTILINE)
    assert re.search(r"^final evaluation return +2.5 \[1, \S+\] +7$", table, re.MULTILINE)


def test_runs_of_different_environments_are_told(tmp_path):
    first = final(tmp_path / "a", 1.0, 0)
    second = final(tmp_path / "b", 1.0, 0, env="jax:Pendulum-v1")
    notes = compare([first, second]).notes
    assert notes == [
        "the environments differ (A: jax:CartPole-v1, B: jax:Pendulum-v1): "
        "returns of different environments cannot be compared"
    ]


def test_what_weakens_a_comparison_is_told(tmp_path):
    first = final(tmp_path / "a", 1.0, 0)
    again = final(tmp_path / "b", 1.0, 0)
    empty = make_run(tmp_path / "c", gamma=0.5, status="failed")
    notes = " ".join(compare([first, again, empty]).notes)
    assert "a seed occurs twice" in notes and "B: no metrics yet" in notes and "B: not finished" in notes


def test_runs_that_differ_in_nothing(run, tmp_path):
    out = run("compare", final(tmp_path / "a", 1.0, 0), final(tmp_path / "b", 2.0, 1))[1]
    assert "the settings do not differ but for the seed" in out


def test_mistakes_are_one_line(run, tmp_path):
    good = final(tmp_path / "a", 1.0, 0)
    (tmp_path / "other").mkdir()
    for words, said in [
        (["compare", good], "one run is not a comparison; give at least two"),
        (["compare", good, "nowhere"], "nowhere: is not a run folder"),
        (["compare", good, "other"], "other: is not a run folder"),
        (["compare", good, f"{good}/../a"], "is given twice"),
        (["compare"], "the following arguments are required: RUN"),
    ]:
        code, out, err = run(*words)
        assert (code, out) == (2, "") and said in err and err.count("\n") == 1


# --- the journal as columns ---


def test_columns_hold_what_the_rows_hold(tmp_path, monkeypatch):
    monkeypatch.setattr("ludus.runs.journal.MOST_LINE", 2000)  # rows across the ends of blocks
    rows = learning_rows(60)
    rows[7]["histogram/action"] = {"low": 0, "high": 1, "counts": [1, 2]}
    rows[9]["episode_returns"] = [1.0, 2.0]
    rows[9]["count"] = 10**400
    read = journal.read(make_run(tmp_path / "run", rows))
    for kind, table in (("train", read.train), ("evaluation", read.evaluation)):
        chosen = [row for row in rows if row["kind"] == kind]
        assert table.rows == len(chosen) and "kind" not in table
        for name in {name for row in chosen for name in row} - {"kind", "histogram/action", "episode_returns", "count"}:
            wanted = np.array([row.get(name, np.nan) for row in chosen])
            assert np.array_equal(table.column(name), wanted, equal_nan=True), name
    assert read.train.objects == {"histogram/action": [(7, {"low": 0, "high": 1, "counts": [1, 2]})]} | {
        "episode_returns": [(9, [1.0, 2.0])]
    }
    assert read.damaged == 0


def test_lines_that_are_no_rows_are_counted_and_left_out(tmp_path):
    path = make_run(tmp_path / "run", [train_row(1), train_row(2)])
    good = (path / "metrics.jsonl").read_text().splitlines()
    bad = ["{", "nonsense", "[1, 2]", "3", '{"kind": "train"}, {"kind": "train"}', "[" * 100_000, '{"a": 1}\\', "\xff"]
    lines = [good[0], *bad, good[1]]
    (path / "metrics.jsonl").write_text("\n".join(lines) + "\n" + '{"kind": "train", "cut', encoding="latin-1")
    read = journal.read(path)
    assert read.train.column("steps").tolist() == [1024, 2048]
    assert read.damaged == len(bad)


def test_a_journal_that_is_not_there_is_named(tmp_path):
    with pytest.raises(LudusError, match=r"metrics\.jsonl: cannot be read"):
        journal.read(tmp_path)
