"""Where the time went, each second once; and the one rule of success, named."""

import pytest
from run_folders import evaluation_row, make_run, train_row

import ludus
from ludus.report.figures.returns import success
from ludus.report.figures.time_spent import throughput
from ludus.runs.journal import read_journal
from ludus.runs.recorder import success_rule
from ludus.runs.summary import Story


def spent(figure) -> dict[str, float]:
    (panel,) = [panel for panel in figure.panels if panel.key == "time"]
    (trace,) = panel.traces
    return dict(zip(trace["y"], trace["x"], strict=True))


def test_evaluations_have_their_own_share_of_the_time(tmp_path):
    rows = [
        train_row(1, **{"seconds/environment": 0.1, "seconds/act": 0.2, "seconds/update": 0.1, "seconds/compile": 0.5}),
        {**evaluation_row(1, 10.0), "seconds/evaluation": 13.0, "elapsed_seconds": 14.0},
    ]
    shares = spent(throughput(Story.read(make_run(tmp_path / "run", rows))))
    assert shares["evaluation"] == 13 and shares["compile"] == 0.5
    assert shares["the rest"] == pytest.approx(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["gym:CartPole-v1", "jax:CartPole-v1"])
def test_no_second_is_counted_twice(env, tmp_path):
    # Sizes that no other test has: everything is compiled here.
    ppo = ludus.PPO(batch_size=56, minibatch_size=28, network=ludus.MLP((7,)))
    settings = ludus.Settings(eval_frequency=2, eval_episodes=3, eval_episodes_final=3, verbose=False)
    trainer = ludus.Trainer(ppo, ludus.make_env(env, 7), settings, run_dir=tmp_path / "run")
    result = trainer.train(total_steps=224)
    rows = read_journal(tmp_path / "run")
    seconds = [x for row in rows for name, x in row.items() if name.startswith("seconds/")]
    assert all(x >= 0 for x in seconds) and sum(seconds) <= result.seconds
    assert any(row.get("seconds/compile") for row in rows)
    assert all("seconds/evaluation" in row for row in rows if row["kind"] == "evaluation")


@pytest.mark.requirement("S3.25")
@pytest.mark.parametrize(
    ("config", "figures", "said"),
    [
        ({"success": "auto", "success_return": -200.0}, {}, "its return is at least -200.0"),
        ({"success": "auto", "success_return": None}, {"info/is_success/last": 0.5}, "the environment says is_success"),
        ({"success": "terminated"}, {}, "it terminates"),
        ({"success": "auto", "success_return": None}, {}, None),
        ({}, {}, None),
    ],
)
def test_the_figure_names_the_rule_and_there_is_none_without(config, figures, said, tmp_path):
    run = make_run(tmp_path / "run", [train_row(i, success_rate=0.0, **figures) for i in (1, 2)], config=config)
    figure = success(Story.read(run))
    assert (figure is None) if said is None else said in figure.about


def test_termination_is_no_success_unless_asked_for():
    assert success_rule("auto", None, is_told=False) is None
    assert success_rule("auto", 10.0, is_told=False) == "return"
    assert success_rule("auto", 10.0, is_told=True) == "info"
    assert success_rule("terminated", 10.0, is_told=True) == "terminated"


@pytest.mark.requirement("S3.25")
@pytest.mark.parametrize("library", ["jax", "gym"])
def test_the_success_of_pendulum_is_what_its_report_calls_solved(library, tmp_path):
    env = ludus.make_env(f"{library}:Pendulum-v1", 1)
    run = make_run(tmp_path / "run", env=f"{library}:Pendulum-v1")
    assert env.return_threshold == Story.read(run).target == -200
