"""What rows and settings are called in MLflow."""

import json

import pytest

from ludus.runs.journal import JournalReader, TakenBackError
from ludus.runs.trackers.base import TrackingOptions
from ludus.runs.trackers.cursor import Batch, Cursor, CursorFiles, digest
from ludus.runs.trackers.mlflow.names import MOST_PARAMETER, Translator, allowed, default_experiment, parameters
from ludus.runs.trackers.mlflow.redaction import redacted, without_credentials
from ludus.types import LudusError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("info/speed/mean", "info/speed/mean"), ("info/größe/mean", "info/gr__e/mean"), ("../up", "__/up"),
        ("a//b", "a/b"), ("/root", "root"), ("..", "__"), (".", "_"), ("x" * 300, "x" * 250), ("a\nb", "a_b"),
    ],
)  # fmt: skip
def test_names_become_such_as_mlflow_takes(name, expected):
    assert allowed(name) == expected
    assert allowed(allowed(name)) == allowed(name)


@pytest.mark.requirement("S1.25")
def test_settings_have_both_names():
    config = {
        "env": "gym:CartPole-v1", "max_episodes": 7, "env_options": {}, "algorithm": {"name": "ppo", "gamma": 0.9},
        "convergence": {"target_return": 195.0, "window": 20, "patience": 3}, "note": "n" * 9000,
    }  # fmt: skip
    made = parameters(config)
    assert made["algorithm.gamma"] == made["gamma"] == "0.9"
    assert made["algorithm.name"] == made["algorithm"] == "ppo"
    documents = {name: made[name] for name in ("target_reward", "convergence_window", "early_stopping_patience")}
    assert documents == {"target_reward": "195.0", "convergence_window": "20", "early_stopping_patience": "3"}
    assert made["env_options"] == "{}" and len(made["note"]) == MOST_PARAMETER


@pytest.mark.parametrize(
    ("env", "name"),
    [("jax:CartPole-v1", "cartpole-ppo"), ("gym:ALE/Pong-v5", "ale-pong-ppo"), ("object:Mine", "mine-ppo")],
)
def test_experiments_are_named_after_environment_and_algorithm(env, name):
    assert default_experiment({"env": env, "algorithm": {"name": "ppo"}}) == name
    TrackingOptions(registered_model=f"{name}-model")


def test_windows_are_exact_where_rows_list_their_episodes():
    rows = [
        {"kind": "train", "steps": i, "episodes": 3 * i, "episode_return_mean": 3.0 * i - 1, "episode_length_mean": 1.0,
         "episode_returns": [3.0 * i - 2, 3.0 * i - 1, 3.0 * i], "episode_lengths": [1, 1, 1]}
        for i in range(1, 6)
    ]  # fmt: skip
    translator = Translator(0)
    last = {metric.key: metric.value for row in rows for metric in translator.metrics(row)}
    assert last["avg_reward_10"] == sum(range(6, 16)) / 10
    assert "avg_reward_50" not in last
    bare = [{key: value for key, value in row.items() if not isinstance(value, list)} for row in rows]
    translator = Translator(0)
    last = {metric.key: metric.value for row in bare for metric in translator.metrics(row)}
    assert last["avg_reward_10"] == sum(range(4, 16)) / 12  # four whole iterations


def test_evaluations_repeat_no_counts():
    row = {"seq": 5, "kind": "evaluation", "steps": 64, "episodes": 3, "eval_return_mean": 9.0, "elapsed_seconds": 1.5}
    made = Translator(1000).metrics(row)
    assert {metric.key for metric in made} == {"eval_return_mean", "eval_avg_reward"}
    assert {(metric.step, metric.timestamp) for metric in made} == {(64, 2500)}


def test_timings_do_not_make_another_row():
    row = {"seq": 1, "steps": 64, "policy_loss": 0.1, "elapsed_seconds": 1.0, "steps_per_second": 5.0}
    assert digest(row) == digest({**row, "elapsed_seconds": 2.0, "steps_per_second": 1.0})
    assert digest(row) != digest({**row, "policy_loss": 0.1000001})


def test_a_cursor_is_kept_and_a_damaged_one_is_named(tmp_path):
    files = CursorFiles(tmp_path)
    assert files.load() is None
    cursor = Cursor("uri", "1", "abc", 5, None, Batch(2, ["00" * 8], [["a", 1.0, 2, 3]]))
    files.save(cursor)
    assert files.load() == cursor and files.sent(cursor) == []
    files.add(cursor, Batch(0, ["11" * 8, "22" * 8], []))
    files.add(cursor, cursor.sending)
    files.add(cursor, cursor.sending)  # the same batch again is the same rows
    assert files.sent(cursor) == ["11" * 8, "22" * 8, "00" * 8]
    (tmp_path / "mlflow" / "abc.sent").write_bytes(bytes(8) + b"torn")
    assert len(files.sent(cursor)) == 1
    for text in ("{", "[]", '{"sending": 3}', json.dumps({"uri": 1, "sending": {}})):
        (tmp_path / "mlflow" / "cursor.json").write_text(text)
        with pytest.raises(LudusError, match=r"cursor\.json: is damaged"):
            files.load()


def test_a_journal_that_is_cut_while_it_is_read_is_noticed(tmp_path):
    journal = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"seq": i, "x": "y" * i}) + "\n" for i in range(20)]
    journal.write_text("".join(lines[:10]) + lines[10][:5])
    reader = JournalReader(journal)
    assert [row["seq"] for row in reader.read_rows()] == list(range(10))
    assert reader.read_rows() == []
    journal.write_text("".join(lines[:11]))
    assert [row["seq"] for row in reader.read_rows()] == [10]
    journal.write_text("".join(lines[:5]))
    with pytest.raises(TakenBackError):
        reader.read_rows()
    journal.write_text("".join(lines[:5]) + "".join(json.dumps({"seq": i}) + "\n" for i in range(5, 60)))
    with pytest.raises(TakenBackError):
        reader.read_rows()


def test_secrets_are_left_out(monkeypatch):
    monkeypatch.setenv("SOME_API_TOKEN", "s3cr et/x")
    said = redacted("no answer from http://me:pw@host:1/a?k=v\nwith s3cr et/x or s3cr%20et%2Fx")
    assert said == "no answer from http://host:1/a with *** or ***"
    assert without_credentials("http://me:pw@host:1/a?token=abc") == "http://host:1/a"
    assert without_credentials("sqlite:////runs/mlflow.db") == "sqlite:////runs/mlflow.db"
