"""The metrics page says what every figure of the journal is, in the words of the code, and real runs write no other."""

import ast
import re

import metrics_page
import pytest
from places import ROOT

import ludus
from ludus.algorithms import bc, bc_sac, diagnostics, kl_penalty, learned_reward, ppo, sac, saturation
from ludus.report.figures import several
from ludus.report.html import page
from ludus.runs import metrics
from ludus.runs.journal import read_journal
from ludus.runs.metrics import metric_of, names_of

COUNTS = {"seq", "kind", "iteration", "steps", "episodes", "updates", "elapsed_seconds"}
"""What every row has."""


def test_the_page_has_a_row_for_every_figure_with_the_codes_own_words():
    """`python tests/support/metrics_page.py` writes the page anew."""
    text = metrics_page.PAGE.read_text()
    assert text == metrics_page.written(text)
    assert all(f"\n## {title}\n" in text for title in metrics_page.SECTIONS)


def test_the_table_has_every_figure_once_and_its_title():
    names = [metric.name for metric in metrics.TABLE]
    assert len(set(names)) == len(names)
    shared = names_of((*metrics.UPDATE, *metrics.REWARD, *metrics.NORMS, *metrics.HISTOGRAMS))
    algorithms = {
        *ppo.METRICS,
        *kl_penalty.METRICS,
        *sac.METRICS,
        *bc.METRICS,
        *bc_sac.METRICS,
        *learned_reward.METRICS,
    }
    assert shared <= {*algorithms, *diagnostics.METRICS, *diagnostics.HISTOGRAMS}, "nobody writes these"
    of_updates = (*metrics.UPDATE, *metrics.REWARD)
    known = (*metrics.ITERATION, *metrics.WHOLE_EPISODES, *metrics.TIMES, *metrics.EVALUATION, *of_updates)
    assert all(metric.title for metric in known)
    others = [alias for metric in metrics.TABLE for alias in metric.aliases]
    assert len({*others, *names}) == len(others) + len(names), "two figures with one name"


READING = {"column", "scalar", "total", "last"}
"""What a figure of the journal is read with, by its name."""


def test_whoever_reads_a_figure_by_its_name_reads_one_of_the_table():
    found = {name for names in several.COLUMNS.values() for name in names[1]} | set(page.CLOCKS.values())
    files = [*(ROOT / "src/ludus/report").rglob("*.py"), *(ROOT / "src/ludus/runs").glob("*.py")]
    for path in (path for path in files if path.parent.name != "live"):  # whose rows are those of its list
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            of = getattr(called, "attr", getattr(called, "id", ""))
            is_row = of == "get" and getattr(getattr(called, "value", None), "id", "") == "row"
            if of in READING or is_row:
                found |= {argument.value for argument in node.args[:2] if isinstance(argument, ast.Constant)}
    found = {name for name in found if isinstance(name, str)}
    assert len(found) > 20
    assert found - set(metrics.OWN_FIELDS) <= names_of(metrics.TABLE)


def test_a_figure_that_nobody_knows_has_a_title_all_the_same():
    assert metric_of("my_own_loss")[2:5] == ("My own loss", "", "train")
    assert metric_of("probe/3")[2:5] == ("probe/3", "", "train")
    assert metric_of("info/speed_norm/x/mean").group == "metrics" and metric_of("eval_mine").group == "evaluation"


def documented(*names: str) -> list[re.Pattern]:
    return [re.compile(re.sub(r"<\w+>", ".+", re.escape(name))) for name in names]


def undocumented(row: dict, *names: str) -> set[str]:
    known = documented(*names)
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


@pytest.mark.slow
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
    assert evaluation.keys() - COUNTS - {"seconds/evaluation"} == names_of(metrics.EVALUATION) - cut
    train = {key: value for row in rows for key, value in row.items()}
    health = {*diagnostics.METRICS, *saturation.METRICS, *diagnostics.HISTOGRAMS}
    names = {*names_of(metrics.ITERATION), *own, *health}
    assert undocumented(train, *names, *names_of((*metrics.TIMES, *metrics.INFO))) == set()
    assert name != "host" or train.keys() >= {"seconds/environment", "seconds/act", "seconds/update"}
    for pattern in documented(*names):
        several = pattern.pattern.startswith("histogram/action/")  # one component here
        assert several or any(pattern.fullmatch(figure) for figure in train), pattern.pattern
