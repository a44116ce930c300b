"""`ludus evaluate` where rules act in place of a policy, and scenarios are held out."""

import csv
import json

import pytest

pytestmark = pytest.mark.slow
SMALL = ("env=driving", "env_options.scenario_length=20")


@pytest.mark.requirement("S2.28", "S2.29", "S2.30", "S2.17")
def test_rules_are_evaluated_side_by_side(run, tmp_path):
    words = ("--driver", "constant,expert", *SMALL, "--episodes", "6", "--variant", "noisy")
    code, out, err = run("evaluate", *words, "--csv", tmp_path / "episodes.csv")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("constant: return ") and lines[1].startswith("expert: return ")
    assert lines[2].split("  ")[0] == "mean [95% interval]"
    table = {line.split()[0]: line for line in lines[3:]}
    assert {"accuracy", "collision", "nuplan_score", "vmax_score", "is_success"} <= table.keys()
    assert table["accuracy"].count("[") == 2
    with (tmp_path / "episodes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["driver"] for row in rows] == ["constant"] * 6 + ["expert"] * 6
    assert {row["kind"] for row in rows} <= {
        "S-bend",
        "skewed crossroads",
        "Y-junction",
        "roundabout of three",
        "lane drop",
    }
    assert len({row["info/progress/last"] for row in rows}) > 6
    code, again, err = run("evaluate", *words, "--json", "--csv", tmp_path / "again.csv")
    assert (code, err) == (0, "")
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "episodes.csv").read_bytes()
    summary = json.loads(again)
    assert lines[0].startswith(f"constant: return {summary['constant']['mean_return']:.2f} ")
    low, high = summary["expert"]["intervals"]["info/accuracy/last"]
    assert 0.0 <= low <= summary["expert"]["info/accuracy/last"] <= high <= 1.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (SMALL, "env=driving: goes with --driver and a rule in place of a RUN"),
        (("--driver", "agent", *SMALL), "goes with --driver and a rule in place of a RUN"),
        (("--driver", "idm", "runs/one", *SMALL), "goes with --driver and a rule in place of a RUN"),
        (("--driver", "idm", "env=driving", "num_envs=3"), "num_envs=3: without a RUN there are env=ID"),
        (("one", "two"), "two: one RUN at a time"),
        (("--driver", "me", *SMALL), "env_options.driver=me: must be one of agent, expert, idm"),
        (("--driver", "idm", "env=CartPole-v1"), "driver"),
    ],
)
def test_a_mistake_is_one_line(run, words, message):
    code, out, err = run("evaluate", *words, "--episodes", "2")
    assert (code, out) == (2, "")
    assert message in err and err.count("\n") == 1
