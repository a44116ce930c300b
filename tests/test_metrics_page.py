"""the metrics page says what every figure of the journal is, in the words of the code, and real runs write no other."""

import re
from pathlib import Path

import pytest

import ludus
from ludus.learning import health, ppo, sac
from ludus.tracking import records
from ludus.tracking.run_folder import read_journal

PAGE = Path(__file__).parents[1] / "docs" / "en" / "metrics.md"
SECTIONS = {
    "Every iteration": records.ITERATION_METRICS,
    "Single episodes": records.EPISODE_METRICS,
    "Whole episodes": records.WHOLE_METRICS,
    "Where the time went": records.TIME_METRICS,
    "The environment's own": records.INFO_METRICS,
    "PPO": ppo.METRICS,
    "SAC": sac.METRICS,
    "Health": health.METRICS,
    "Histograms": health.HISTOGRAMS,
    "Evaluations": records.EVALUATION_METRICS,
}
COUNTS = {"seq", "kind", "iteration", "steps", "episodes", "updates", "elapsed_seconds"}
"""What every row has."""


def table(title: str) -> list[str]:
    section = PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("title", SECTIONS)
def test_the_page_has_a_row_for_every_figure_with_the_codes_own_words(title):
    rows = [f"| `{name}` | {meaning.replace('|', chr(92) + '|')} |" for name, meaning in SECTIONS[title].items()]
    assert table(title) == rows


def documented(*tables: dict[str, str]) -> list[re.Pattern]:
    names = [re.escape(name) for names in tables for name in names]
    return [re.compile(re.sub(r"<\w+>", ".+", name)) for name in names]


def undocumented(row: dict, *tables: dict[str, str]) -> set[str]:
    known = documented(*tables)
    return {name for name in row if name not in COUNTS and not any(one.fullmatch(name) for one in known)}


RUNS = {
    "ppo": ("CartPole-v1", ludus.PPO(batch_size=256, minibatch_size=64, epochs_per_update=1), ppo.METRICS),
    "sac": (
        "Pendulum-v1",
        ludus.SAC(learning_starts=64, batch_size=8, replay_size=512, updates_per_step=0.1, network=ludus.MLP((8,))),
        sac.METRICS,
    ),
    "host": ("gym:Pendulum-v1", ludus.PPO(batch_size=1024, minibatch_size=512, epochs_per_update=1), ppo.METRICS),
}


@pytest.mark.requirement("S4.17", "S4.18", "S4.21")
@pytest.mark.parametrize("name", RUNS)
def test_real_runs_write_every_documented_figure_and_no_other(tmp_path, name):
    env, algorithm, own = RUNS[name]
    env = ludus.make_env(env, num_envs=4)
    trainer = ludus.Trainer(
        algorithm,
        env,
        ludus.Settings(eval_frequency=0, health_frequency=1, recent_episodes_window=1, verbose=False),
        run_dir=tmp_path / "run",
    )
    trainer.train(total_steps=1024)
    *rows, evaluation = read_journal(tmp_path / "run")
    assert evaluation["kind"] == "evaluation"
    cut = {"eval_episodes_cut"}  # no episode was
    assert evaluation.keys() - COUNTS - {"seconds/evaluation"} == records.EVALUATION_METRICS.keys() - cut
    train = {key: value for row in rows for key, value in row.items()}
    tables = records.ITERATION_METRICS, own, health.METRICS, health.HISTOGRAMS
    assert undocumented(train, *tables, records.TIME_METRICS, records.INFO_METRICS) == set()
    assert name != "host" or train.keys() >= {"seconds/environment", "seconds/act", "seconds/update"}
    for pattern in documented(*tables):
        several = pattern.pattern.startswith("histogram/action/")  # one component here
        assert several or any(pattern.fullmatch(figure) for figure in train), pattern.pattern
