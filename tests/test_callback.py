"""A user's function that hears how training goes."""

import pytest

import ludus
from ludus.tracking.run_folder import read_identity, read_journal
from ludus.verify import journal_of


def trainer(run_dir=None, **settings) -> ludus.Trainer:
    algorithm = ludus.PPO(batch_size=128, minibatch_size=64, epochs_per_update=1)
    settings = {"eval_frequency": 0, "verbose": False, **settings}
    run = ludus.Trainer(algorithm, ludus.make_env("CartPole-v1", 2), ludus.Settings(**settings), run_dir=run_dir)
    run.final_episodes = 0
    return run


@pytest.mark.requirement("S1.23")
def test_it_hears_of_every_iteration(tmp_path):
    heard = []
    trainer(tmp_path / "run").train(total_steps=640, callback=heard.append)
    rows = read_journal(tmp_path / "run")
    assert [metrics["iteration"] for metrics in heard] == [1, 2, 3, 4, 5]
    assert [metrics["episode"] for metrics in heard] == [row["episodes"] for row in rows]
    for metrics, row in zip(heard, rows, strict=True):
        assert metrics["step_metrics"]["avg_reward"] == row["episode_return_mean"]
        assert metrics["step_metrics"]["kl_divergence"] == row["approx_kl"]
        assert metrics["step_metrics"]["entropy_loss"] == -row["entropy"]
        assert metrics["eval_metrics"] is None


@pytest.mark.requirement("S1.23")
def test_it_hears_of_every_episode_where_they_are_recorded(tmp_path):
    heard = []
    trainer(tmp_path / "run", record_episodes=True).train(total_steps=640, callback=heard.append)
    rows = read_journal(tmp_path / "run")
    returns = [total for row in rows for total in row["episode_returns"]]
    assert [metrics["episode"] for metrics in heard] == list(range(1, len(returns) + 1))
    assert [metrics["step_metrics"]["avg_reward"] for metrics in heard] == returns
    assert [metrics["step_metrics"]["avg_length"] for metrics in heard] == returns


@pytest.mark.requirement("S1.23")
def test_it_gets_the_evaluation_that_there_was_and_causes_none(tmp_path):
    heard = []
    trainer(tmp_path / "run", eval_frequency=2, eval_episodes=3).train(total_steps=640, callback=heard.append)
    rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "evaluation"]
    told = {metrics["iteration"]: metrics["eval_metrics"] for metrics in heard if metrics["eval_metrics"]}
    # Those before the first iteration and after the last have no iteration to be told with.
    assert {row["iteration"]: row["eval_return_mean"] for row in rows if row["iteration"]} == {
        iteration: figures["avg_reward"] for iteration, figures in told.items()
    }
    assert told


@pytest.mark.requirement("S1.18")
def test_evaluations_can_be_counted_in_episodes(tmp_path):
    trainer(tmp_path / "run", eval_frequency=10, eval_by="episodes", eval_episodes=2).train(max_episodes=60)
    rows = read_journal(tmp_path / "run")
    evaluated = [row["episodes"] for row in rows if row["kind"] == "evaluation"]
    ended = [row["episodes"] for row in rows if row["kind"] == "train"]
    crossed = [new for old, new in zip([0, *ended], ended, strict=False) if new // 10 > old // 10]
    assert evaluated == [n for n in crossed if n < ended[-1]]


def test_returning_false_ends_the_run_with_everything_saved(tmp_path):
    result = trainer(tmp_path / "run").train(total_steps=10_000, callback=lambda metrics: metrics["iteration"] < 3)
    assert (result.iterations, result.stopped_by) == (3, "callback")
    identity = read_identity(tmp_path / "run")
    assert (identity["status"], identity["exit_reason"]) == ("finished", "callback")
    assert ludus.load_policy(tmp_path / "run")


def test_one_that_raises_is_named_and_the_run_goes_on(tmp_path, capsys):
    calls = []

    def unlucky(metrics):
        calls.append(metrics)
        raise ValueError("no such luck")

    result = trainer(verbose=True).train(total_steps=640, callback=unlucky)
    assert result.steps == 640 and len(calls) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if "unlucky" in line]
    assert len(said) == 1 and "raised ValueError: no such luck; training goes on without it" in said[0]


@pytest.mark.parametrize("wrong", [lambda: None, lambda a, b: None, 3])
def test_what_cannot_be_called_with_the_metrics_is_refused(wrong):
    with pytest.raises(ludus.LudusError, match=r"callback=.*must be a function of one argument"):
        trainer().train(total_steps=640, callback=wrong)


def test_it_changes_nothing_about_training(tmp_path):
    trainer(tmp_path / "a").train(total_steps=1280)
    trainer(tmp_path / "b").train(total_steps=1280, callback=lambda metrics: None)
    a, b = (journal_of(tmp_path / name) for name in "ab")
    assert a == b
