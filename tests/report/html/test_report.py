"""A report's contents: the verdict, the files of figures, what is drawn, and how every mistake is answered."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from run_folders import evaluation_row, full_rows, learning_rows, make_run, train_row, unpacked

from ludus.report.comparison import compared
from ludus.report.figures import several, single
from ludus.report.figures.performance import performance_report, training_summary, write_summaries
from ludus.report.html.make import make_report
from ludus.report.verdict import verdict
from ludus.runs.metrics import OWN_FIELDS, PLACE
from ludus.runs.summary import Story

pytestmark = pytest.mark.slow


def story(path, rows, **options) -> Story:
    return Story.read(make_run(path / "run", rows, **options))


# --- the verdict ---


def noisy(means, start: int = 1):
    """Iterations with these mean returns and some noise."""
    random = np.random.default_rng(0)
    return [train_row(start + i, episode_return_mean=float(m + random.normal())) for i, m in enumerate(means)]


@pytest.mark.parametrize(
    ("rows", "env", "word", "told"),
    [
        ([*noisy([100] * 50), evaluation_row(50, 480)], "jax:CartPole-v1", "solved", "target of 475"),
        ([*noisy([100] * 50), evaluation_row(50, 475.5)], "jax:CartPole-v1", "solved", "still reaches below"),
        (noisy(np.linspace(0, 400, 100)), "jax:CartPole-v1", "improving", "moved from"),
        (noisy([100] * 100), "jax:CartPole-v1", "stuck", "no significant rise"),
        (noisy(np.linspace(400, 100, 100)), "jax:CartPole-v1", "stuck", "no significant rise"),
        (noisy([100] * 100), "gym:Unknown-v7", "stuck", "no significant rise"),
        ([evaluation_row(1, 0), evaluation_row(2, 400), evaluation_row(3, 50)], "gym:X", "diverged", "more than half"),
        (
            [evaluation_row(1, 0), evaluation_row(2, 400), evaluation_row(3, 380)],
            "gym:X",
            "too early to say",
            "too few",
        ),
        (noisy([1, 2, 3]), "gym:X", "too early to say", "too few episodes"),
        ([], "gym:X", "too early to say", "no episode"),
        ([train_row(1)], "gym:X", "too early to say", "no episode"),
    ],
)
def test_the_verdict(tmp_path, rows, env, word, told):
    judged = verdict(story(tmp_path, rows, env=env))
    assert judged.word == word and told in judged.evidence


def test_a_run_that_met_a_nan_has_diverged(tmp_path):
    reason = "LudusError: training stopped: loss is not finite (NaN or Inf) in iteration 3"
    run = story(tmp_path, noisy([400] * 50), status="failed", identity={"exit_reason": reason})
    assert str(verdict(run)) == f"Diverged: {reason}"


def test_the_run_s_own_target_goes_before(tmp_path):
    run = story(tmp_path, [evaluation_row(1, 50)], config={"convergence": {"target_return": 40}})
    assert run.target == 40 and verdict(run).word == "solved"


def test_the_score_without_evaluations_is_that_of_the_latest_hundred_episodes(tmp_path):
    run = story(tmp_path, [train_row(i, episode_return_mean=float(i)) for i in range(1, 31)])
    assert run.score is not None and run.best is None
    assert (run.score.episodes, run.score.mean) == (100, 25.5)  # ten an iteration: 21 ... 30


# --- the files of figures ---


@pytest.mark.requirement("S1.25")
def test_the_performance_report_is_what_a_hand_would_compute(tmp_path):
    rows = [
        train_row(
            i, episode_return_mean=mean, episode_return_min=mean - 1, episode_return_max=mean + 1, value_loss=loss
        )
        for i, (mean, loss) in enumerate(zip([100.0] * 10 + [480.0] * 15, np.linspace(5, 1, 25), strict=True), 1)
    ]
    made = performance_report(story(tmp_path, [*rows, evaluation_row(25, 490)]))
    assert made["resolution"] == "iteration"
    assert made["basic_stats"]["total_episodes"] == 250
    assert made["basic_stats"]["mean_reward"] == pytest.approx((1000 + 15 * 480) / 25)
    assert (made["basic_stats"]["min_reward"], made["basic_stats"]["max_reward"]) == (99, 481)
    found = made["convergence_analysis"]
    # ten episodes an iteration: a hundred episodes are ten rows, all of 480 in row 20 at first
    assert (found["window"], found["converged"]) == (10, True)
    assert (found["convergence_episode"], found["convergence_step"]) == (200, 20 * 1024)
    assert found["best_average"] == pytest.approx(480)
    loss = made["loss_analysis"]["value_loss"]
    assert loss["trend_per_iteration"] == pytest.approx(-4 / 24)
    assert (loss["initial"], loss["final"]) == (pytest.approx(5 - 2 / 24), pytest.approx(1 + 2 / 24))
    assert made["stability_analysis"]["share_above_target"] == pytest.approx(15 / 25)
    assert made["performance_benchmarks"]["share_at_or_above"] == {"195": 0.6, "475": 0.6}
    assert made["performance_benchmarks"]["final_score"] == 490


def test_single_episodes_are_used_where_they_are_journalled(tmp_path):
    run = story(tmp_path, full_rows(50))
    assert run.episodes.each and len(run.episodes.returns) == 500
    rows = full_rows(50)
    wanted = [x for row in rows if row["kind"] == "train" for x in row["episode_returns"]]
    assert run.episodes.returns.tolist() == wanted
    assert performance_report(run)["resolution"] == "episode"


def test_both_files_are_written_privately_and_are_strict_json(tmp_path):
    run = make_run(tmp_path / "run", learning_rows(30), identity={"exit_reason": "total_steps"})
    for path in write_summaries(run):
        json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
        assert path.stat().st_mode & 0o777 == 0o600
    summary = training_summary(Story.read(run))
    assert (summary["verdict"], summary["total_steps"], summary["status"]) == ("solved", 30 * 1024, "finished")


def test_summaries_need_neither_plotly_nor_jax(tmp_path):
    run = make_run(tmp_path / "run", learning_rows(30))
    code = "import sys; sys.modules['plotly'] = None\nfrom ludus.report.figures.performance import write_summaries\n"
    code += f"write_summaries({str(run)!r}); print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- what is drawn ---


DECLARED = {
    "returns", "lengths", "success", "stability", "losses", "divergence", "policy", "gradient_flow", "optimiser",
    "gradients", "actions", "throughput", "others",
}  # fmt: skip


@pytest.mark.requirement("S4.21")
@pytest.mark.requirement("S4.22")
@pytest.mark.requirement("S3.35")
def test_every_figure_is_drawn_from_a_journal_that_has_it_all(tmp_path):
    run = story(tmp_path, full_rows(100), config={"success_return": 475.0})
    drawn = single.draw(run)
    assert {each.key for each in drawn} == DECLARED
    keys = [panel.key for each in drawn for panel in each.panels]
    assert len(set(keys)) == len(keys)
    columns = {t["meta"]["column"] for f in drawn for p in f.panels for t in p.traces if "meta" in t}
    hidden = set(run.train.columns) - columns - {*PLACE, *OWN_FIELDS} - {"episode_return_min", "episode_return_max"}
    assert {name for name in hidden if not name.startswith("seconds/")} == set()


def test_what_is_drawn_is_what_the_journal_says(tmp_path):
    run = story(tmp_path, full_rows(100))
    checked = 0
    for each in single.draw(run):
        for panel in each.panels:
            for trace in panel.traces:
                if "meta" not in trace:
                    continue
                column = trace["meta"]["column"]
                table = run.evaluation if column.startswith("eval_") else run.train
                values, steps = table.column(column), table.column("steps")
                known = np.isfinite(values)
                assert np.array_equal(unpacked(trace["y"]), values[known]), column
                assert np.array_equal(unpacked(trace["x"]), steps[known]), column
                checked += 1
    assert checked > 40


def test_evaluations_are_drawn_with_their_interval_and_the_best_is_marked(tmp_path):
    rows = [evaluation_row(1, 10.0, 5.0, 100), evaluation_row(2, 30.0, 0.0, 100), evaluation_row(3, 20.0, 10.0, 25)]
    traces = {t["name"]: t for t in single.draw(story(tmp_path, rows))[0].panels[0].traces}
    assert unpacked(traces["evaluation"]["error_y"]["array"]).tolist() == pytest.approx([0.98, 0, 3.92], abs=1e-3)
    assert unpacked(traces["best: 30.00"]["x"]).tolist() == [2048]


def test_a_sweep_has_a_heat_map(tmp_path):
    stories = []
    for gamma in (0.9, 0.99):
        for rate in (1e-3, 1e-4):
            for seed in (0, 1):
                value = 100 * gamma + 1e4 * rate + seed
                path = tmp_path / f"{gamma}-{rate}-{seed}"
                stories.append(
                    Story.read(make_run(path, [evaluation_row(1, value)], seed=seed, gamma=gamma, learning_rate=rate))
                )
    [panel] = several.heat_maps(compared(stories))
    [heat] = panel.traces
    assert panel.x == "algorithm.gamma" and panel.y == "algorithm.learning_rate"
    assert (heat["x"], heat["y"]) == (["0.9", "0.99"], ["0.0001", "0.001"])
    assert np.array(heat["z"]) == pytest.approx(np.array([[91.5, 100.5], [100.5, 109.5]]))


def test_curves_of_seeds_are_their_interquartile_mean(tmp_path):
    scores = (0.0, 1.0, 2.0, 3.0, 100.0)
    paths = [
        make_run(tmp_path / f"{i}", [evaluation_row(1, score), evaluation_row(3, 10.0 + score)], seed=i)
        for i, score in enumerate(scores)
    ]
    drawn = {each.key: each for each in several.draw(compared(list(map(Story.read, paths))))}
    traces = {trace["name"]: trace for panel in drawn["returns"].panels for trace in panel.traces if "name" in trace}
    middle = traces["A (5 seeds)"]
    assert unpacked(middle["x"])[[0, -1]].tolist() == [1024, 3072]
    assert unpacked(middle["y"])[[0, -1]].tolist() == pytest.approx([2.0, 12.0])  # the mean of 1, 2, 3


# --- the command ---


@pytest.mark.requirement("S4.22")
def test_the_command_writes_the_page_and_says_where(run, tmp_path):
    make_run(tmp_path / "runs" / "a", learning_rows(30))
    assert (
        run("report", "runs/a", "--no-images") == run("report", "--no-images") == (0, "runs/a/report/index.html\n", "")
    )
    names = {path.name for path in (tmp_path / "runs" / "a" / "report").iterdir()}
    assert names == {"index.html", "performance_report.json", "training_summary.json"}
    page = (tmp_path / "runs/a/report/index.html").read_text()
    assert page.count("<script") == 1 and "Solved" in page
    assert not re.search(r'(src|href)="(?!#|data:)', page.partition("<script")[0])


def test_several_runs_are_reported_beside_them(run, tmp_path):
    for seed in (0, 1):
        make_run(tmp_path / "runs" / f"{seed}", learning_rows(30), seed=seed)
    code, out, _ = run("report", "runs/0", "runs/1", "--no-images")
    assert code == 0 and out.strip() == str(tmp_path / "runs" / "report" / "index.html")
    assert run("report", "runs/0", "runs/1", "--output", "here.html", "--no-images")[1] == "here.html\n"
    assert not (tmp_path / "runs" / "0" / "report").exists()


@pytest.mark.parametrize("rows", [[], [train_row(1)], [evaluation_row(1, 3.0)]], ids=["nothing", "train", "evaluation"])
def test_whatever_can_be_shown_is_shown(run, tmp_path, rows):
    make_run(tmp_path / "a", rows, status="running")
    assert run("report", "a", "--no-images")[0] == 0
    page = (tmp_path / "a/report/index.html").read_text().partition("<script")[0]
    assert ("no row yet" in page) == (rows == []) and "killed" in page


def test_damaged_lines_are_left_out_and_told(run, tmp_path):
    path = make_run(tmp_path / "a", learning_rows(30))
    with (path / "metrics.jsonl").open("a") as file:
        file.write('nonsense\n{"kind": "train", "steps": 1')
    assert run("report", "a", "--no-images")[0] == 0
    assert "1 damaged line of the journal was left out" in (path / "report/index.html").read_text()


def test_values_of_the_wrong_kind_do_not_end_a_report(run, tmp_path):
    strange = {"episode_return_mean": "high", "approx_kl": [1], "entropy": None, "seconds/act": {"a": 1}}
    strange |= {"histogram/action": {"low": "x", "counts": []}, "episode_returns": 7, "eval_return_mean": True}
    listed = {"episode_returns": ["a", None, 3], "histogram/gradient": [1], "value_loss": 1e308}
    rows = [train_row(1, **strange), train_row(2, **listed), *learning_rows(20)[2:], {"kind": "other"}, {"kind": 3}]
    make_run(tmp_path / "a", rows, identity={"versions": 3, "devices": "cpu", "resumed": [1, {}]})
    code, _, err = run("report", "a", "--no-images")
    assert (code, err) == (0, "")


def test_mistakes_are_one_line(run, tmp_path):
    make_run(tmp_path / "a", learning_rows(10))
    (tmp_path / "other").mkdir()
    for words, said in [
        (["report", "nowhere"], "nowhere: is not a run folder"),
        (["report", "other"], "other: is not a run folder"),
        (["report"], "no RUN given and none in runs/"),
        (["report", "a", "--output", "a/run.json/page.html"], "cannot be written"),
    ]:
        code, out, err = run(*words)
        assert (code, out) == (2, "") and said in err and err.count("\n") == 1


def test_a_report_needs_no_jax(tmp_path):
    make_run(tmp_path / "a", learning_rows(30))
    code = (
        "import sys; from ludus.cli.main import main; main(['report', 'a', '--no-images']); print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_the_same_run_gives_the_same_page(tmp_path):
    path = make_run(tmp_path / "a", full_rows(50))
    assert make_report([path]).page.read_bytes() == make_report([path]).page.read_bytes()


def test_a_film_that_is_too_large_or_a_link_stays_outside(tmp_path, monkeypatch):
    from ludus.report.html import page

    run = make_run(tmp_path / "a", learning_rows(20))
    (run / "videos").mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    (run / "videos" / "final.mp4").symlink_to(tmp_path / "secret")
    assert "<video" not in make_report([run]).page.read_text()
    (run / "videos" / "other.mp4").write_bytes(b"film")
    assert 'src="data:video/mp4;base64,ZmlsbQ=="' in make_report([run]).page.read_text()
    monkeypatch.setattr(page, "MOST_FILM", 3)
    assert "<video" not in make_report([run]).page.read_text()


def test_short_series_are_drawn_alone_and_longer_ones_smoothed_too(tmp_path):
    short = story(tmp_path / "short", learning_rows(19))
    long = story(tmp_path / "long", learning_rows(400))
    for run, windows in ((short, []), (long, ["8"])):
        panels = {panel.key: panel for each in single.draw(run) for panel in each.panels}
        names = [trace["name"] for trace in panels["entropy"].traces]
        assert re.findall(r"mean of (\d+)", " ".join(names)) == windows
    smoothed = unpacked(panels["entropy"].traces[1]["y"])
    assert smoothed[100] == pytest.approx(long.train.column("entropy")[93:101].mean())


def test_actions_to_choose_from_are_bars_of_their_own(tmp_path):
    rows = [train_row(i, **{"histogram/action": {"low": 0, "high": 3, "counts": [i, 2, 3]}}) for i in range(1, 4)]
    panels = {panel.key: panel for each in single.draw(story(tmp_path, rows)) for panel in each.panels}
    [bars] = panels["histogram/action"].traces
    assert unpacked(bars["x"]).tolist() == [0, 1, 2] and unpacked(bars["y"]).tolist() == [3, 2, 3]
    [heat] = panels["histogram/action/time"].traces
    assert heat["y"] == [0, 1, 2]
    assert np.array(heat["z"])[:, 0] == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=1e-4)


def test_the_time_that_nobody_claimed_is_shown(tmp_path):
    rows = [train_row(i, **{"seconds/update": 0.25, "seconds/compile": 0.5}) for i in (1, 2, 3, 4)]
    panels = {panel.key: panel for each in single.draw(story(tmp_path, rows)) for panel in each.panels}
    [bars] = panels["time"].traces
    assert dict(zip(bars["y"], bars["x"], strict=True)) == {"update": 1.0, "compile": 2.0, "the rest": 1.0}


def test_nothing_is_written_through_a_link(run, tmp_path):
    make_run(tmp_path / "a", learning_rows(20))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a" / "report").symlink_to(tmp_path / "elsewhere")
    code, out, err = run("report", "a", "--no-images")
    assert (code, out) == (2, "") and "is a link" in err
    assert list((tmp_path / "elsewhere").iterdir()) == []
