"""log.txt: all that was said of a run, whoever said it, from its first line to how it ended; and no long silence."""

import logging
import time

import pytest
from worker_envs import Ledger

import ludus
from ludus.runs.console import Console

PPO = ludus.PPO(batch_size=64, minibatch_size=64, epochs_per_update=1, network=ludus.MLP(hidden_sizes=(8,)))


def train(env, folder, **settings) -> str:
    settings = ludus.Settings(eval_frequency=0, eval_episodes_final=2, verbose=False, **settings)
    ludus.Trainer(PPO, env, settings, run_dir=folder).train(total_steps=256)
    return (folder / "log.txt").read_text()


@pytest.mark.slow
def test_the_log_has_the_whole_story_of_a_run(tmp_path):
    log = train(ludus.make_env("jax:CartPole-v1", 4), tmp_path / "run").splitlines()
    assert "jax:CartPole-v1 · 4 environments · seed 0" in log[0]
    assert "evaluation return" in log[-2]
    assert "finished · total_steps · 256 steps" in log[-1]
    resumed = ludus.Trainer.resume(tmp_path / "run", verbose=False, total_steps=320)
    resumed.train()
    log = (tmp_path / "run" / "log.txt").read_text().splitlines()[len(log) :]
    assert any("resumed at 256 steps · exact" in line for line in log)
    assert "finished · total_steps · 320 steps" in log[-1]


@pytest.mark.slow
@pytest.mark.parametrize("is_configured", [True, False])
def test_the_log_names_a_worker_that_died(tmp_path, is_configured, monkeypatch, capsys):
    handlers = [logging.NullHandler()] if is_configured else []
    monkeypatch.setattr(logging.getLogger(), "handlers", handlers)  # pytest has its own
    (tmp_path / "kill").write_text("10")
    env = ludus.make_env(Ledger, 4, num_workers=2, folder=str(tmp_path))
    try:
        log = train(env, tmp_path / "run")
    finally:
        env.close()
    assert "object:Ledger" in log and "is restarted, its running episodes are dropped" in log
    assert ("is restarted" in capsys.readouterr().err) is not is_configured, "shown as it was before there was a log"
    assert not logging.getLogger("ludus").handlers


def test_the_log_has_the_traceback_of_what_ended_a_run(tmp_path):
    class Faulty(Ledger):
        def step(self, action):
            if self.t == 3:
                raise ZeroDivisionError("out of fuel")
            return super().step(action)

    with pytest.raises(Exception, match="out of fuel"):
        train(ludus.make_env(Faulty, 4, num_workers=0), tmp_path / "run")
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "ZeroDivisionError: out of fuel" in log and "failed · " in log


def test_what_takes_long_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("ludus.runs.console.LINE_EVERY_SECONDS", 0.1)
    console = Console(verbose=True)
    console.log = tmp_path / "log.txt"
    console.start()
    console.at("evaluating", 3, 100)
    time.sleep(1.5)
    console.stop()
    said = capsys.readouterr().err
    assert "evaluating ... " in said and ", 3 of 100" in said
    assert "evaluating ... " in console.log.read_text()
    time.sleep(1.2)
    assert capsys.readouterr().err == "", "nothing goes on after the end"


@pytest.mark.slow
@pytest.mark.requirement("S1.25")
def test_the_summary_tells_the_time_that_the_journal_tells(tmp_path):
    class Slow:
        def begin(self, folder): ...

        def wake(self): ...

        def end(self):
            time.sleep(2.0)

    settings = ludus.Settings(eval_frequency=0, eval_episodes_final=0, verbose=False)
    trainer = ludus.Trainer(PPO, ludus.make_env("jax:CartPole-v1", 4), settings, run_dir=tmp_path / "run")
    trainer.record.trackers = [Slow()]
    result = trainer.train(total_steps=256)
    assert result.seconds - trainer.record.latest["elapsed_seconds"] < 1.5
    time.sleep(0.1)
    assert trainer.record.elapsed == result.seconds, "the clock stands still while nobody trains"
