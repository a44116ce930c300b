"""The block of statistics and the log: every figure of them on an environment whose every reward is scripted."""

import dataclasses
import re
import subprocess
import sys
from contextlib import closing

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

import ludus
from ludus.runs.journal import read_journal
from ludus.runs.statistics_block import Recent, block
from ludus.spaces import Box, Discrete

pytestmark = pytest.mark.slow

SECTIONS = {
    "ROLLOUT STATISTICS": [
        "mean_ep_len", "mean_ep_return", "mean_reward", "mean_clipped_ratio", "approx_kl", "rollout_len", "time_elapsed"
    ],
    "RECENT N EPISODES": ["mean_ep_len", "mean_ep_return", "success_rate"],
    "TRAINER STATISTICS": ["episodes_count", "timesteps_count", "rollouts_count", "total_timesteps", "clip_range"],
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Scripted(ludus.Environment):
    """Episodes of five steps that pay 0, 1, 2, 3, 4; every one of them terminates."""

    observation_space = Box(0.0, 5.0, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        return jnp.zeros(()), jnp.zeros(1)

    def step(self, state, action, key):
        return state + 1, ludus.Step((state + 1)[None], state, state + 1 >= 5)


class Told(gymnasium.Env):
    """Episodes of two steps; every third one says that it succeeded."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    episodes = steps = 0

    def reset(self, *, seed=None, options=None):
        self.steps, self.episodes = 0, self.episodes + 1
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        over = self.steps == 2
        return np.zeros(1, np.float32), 1.0, False, over, {"is_success": self.episodes % 3 == 0} if over else {}


def trainer(env=None, run_dir=None, **settings) -> ludus.Trainer:
    algorithm = ludus.PPO(batch_size=40, minibatch_size=20, epochs_per_update=1)
    settings = {"eval_frequency": 0, "verbose": False, **settings}
    made = env if hasattr(env, "remake") else ludus.make_env(env or Scripted(), 4)
    run = ludus.Trainer(algorithm, made, ludus.Settings(**settings), run_dir=run_dir)
    run.final_episodes = 0
    return run


def blocks(text: str) -> list[list[tuple[str, dict[str, str]]]]:
    """Take blocks apart: sections in order, each with its figures in order."""
    found = []
    for part in re.findall(r"^={35}\n(.*?)\n={35}$", text, re.MULTILINE | re.DOTALL):
        sections = []
        for section in part.split("\n\n"):
            title, rule, *lines = section.split("\n")
            assert rule == "-" * 35
            sections.append((title, dict(re.fullmatch(r"  (\w+): +(.*)", line).groups() for line in lines)))
        found.append(sections)
    return found


@pytest.mark.requirement("S3.15")
def test_the_block_has_three_sections_with_their_names_in_order(capsys):
    trainer(verbose=True, log_frequency=1).train(total_steps=120)
    shown = blocks(capsys.readouterr().err)
    assert len(shown) == 3
    for sections in shown:
        titles = [re.sub(r"\d+", "N", title) for title, _ in sections]
        assert titles == list(SECTIONS)
        assert [list(figures) for _, figures in sections] == list(SECTIONS.values())


@pytest.mark.requirement("S3.15")
def test_without_verbose_nothing_is_shown(capsys):
    from loguru import logger

    sink = logger.add(sys.stderr)  # as in a program that has done nothing about it
    try:
        trainer(log_frequency=1).train(total_steps=120)
        assert capsys.readouterr() == ("", "")
        trainer(log_frequency=1, verbose=True).train(total_steps=80)
    finally:
        logger.remove(sink)
    first, *lines = capsys.readouterr().err.splitlines()
    assert "object:Scripted" in first and not [line for line in lines if "iteration" in line]
    assert len(blocks("\n".join(lines))) == 2


@pytest.mark.requirement(
    "S3.16", "S3.17", "S3.18", "S3.19", "S3.20", "S3.21", "S3.22", "S3.23", "S3.24", "S3.25",
    "S3.26", "S3.27", "S3.28", "S3.29", "S3.30",
)  # fmt: skip
def test_every_figure_is_right_on_a_scripted_environment(capsys, tmp_path):
    run = trainer(verbose=True, log_frequency=1, success="terminated", run_dir=tmp_path / "run")
    run.train(total_steps=100)
    sections = [dict(shown) for shown in blocks(capsys.readouterr().err)]
    rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "train"]
    for number, (shown, row) in enumerate(zip(sections, rows, strict=True), 1):
        rollout, recent = shown["ROLLOUT STATISTICS"], shown[f"RECENT {8 * number} EPISODES"]
        totals = shown["TRAINER STATISTICS"]
        assert rollout["mean_ep_len"] == "5.00" and rollout["mean_ep_return"] == "10.00"
        assert rollout["mean_reward"] == "2.0000" and rollout["rollout_len"] == "40"
        assert rollout["mean_clipped_ratio"] == f"{row['clip_fraction']:.4f}"
        assert rollout["approx_kl"] == f"{row['approx_kl']:.6f}"
        assert rollout["time_elapsed"] == f"{40 / row['steps_per_second']:.2f} s (with its update)"
        assert recent == {"mean_ep_len": "5.00", "mean_ep_return": "10.00", "success_rate": "100.00% (terminated)"}
        assert totals == {
            "episodes_count": str(8 * number), "timesteps_count": str(40 * number), "rollouts_count": str(number),
            "total_timesteps": "100", "clip_range": "0.2",
        }  # fmt: skip


def test_what_an_algorithm_does_not_know_is_left_open():
    row = {"episodes": 0, "steps": 8, "iteration": 1, "steps_per_second": 4.0}
    text = block(row, 8, Recent(0, None, None, None), {"total_steps": None})
    (sections,) = blocks(text)
    assert sections[0][1]["approx_kl"] == sections[1][1]["success_rate"] == sections[2][1]["clip_range"] == "-"
    assert sections[0][1]["time_elapsed"] == "2.00 s (with its update)"


@pytest.mark.requirement("S3.22")
def test_the_time_of_a_rollout_is_without_its_update_and_without_compilation(tmp_path, capsys):
    with closing(ludus.make_env(Told, 2, num_workers=0)) as env:
        run = trainer(env, verbose=True, log_frequency=1, run_dir=tmp_path / "run")
        run.train(total_steps=80)
    shown = [dict(sections)["ROLLOUT STATISTICS"] for sections in blocks(capsys.readouterr().err)]
    rows = [row for row in read_journal(tmp_path / "run") if row["kind"] == "train"]
    for figures, row in zip(shown, rows, strict=True):
        assert figures["time_elapsed"] == f"{row['seconds/act'] + row['seconds/environment']:.2f} s"
    assert rows[0]["seconds/act"] < rows[0]["seconds/compile"]


@pytest.mark.requirement("S3.24", "S3.32")
def test_the_recent_window_is_a_setting_and_the_best_policy_is_always_kept(tmp_path):
    run = trainer(run_dir=tmp_path / "run", recent_episodes_window=16)
    assert run.train(total_steps=160).iterations == 4
    assert run.record.recent.episodes == 16 and run.keeper.marks.best_return == 10.0
    assert (tmp_path / "run" / "policies" / "best_return_pi_ckpt.safetensors").exists()
    few = trainer(run_dir=tmp_path / "few")
    few.train(total_steps=40)
    assert few.keeper.marks.best_return is None, "eight of a hundred episodes say little"
    assert ludus.load_policy(tmp_path / "few" / "policies" / "best_return_pi_ckpt.safetensors")


@pytest.mark.requirement("S3.32")
def test_the_best_policy_is_looked_for_every_ten_iterations_or_as_often_as_wanted(tmp_path):
    for every, expected in ((0, [10, 20, 24]), (7, [7, 14, 21, 24])):
        options = ludus.CheckpointOptions(best_every=every)
        looks, run = [], trainer(run_dir=tmp_path / f"{every}", recent_episodes_window=1, checkpoint=options)
        run.judge._keep_if_best = lambda looks=looks, run=run: looks.append(run.record.iterations)
        run.train(total_steps=960)
        assert looks == expected, "the last look is when the run is over"


@pytest.mark.requirement("S3.25")
@pytest.mark.parametrize(("settings", "expected"), [
    ({}, None),  # no threshold, and to terminate may be to fail: there is no rule
    ({"success": "terminated"}, 1.0),
    ({"success_return": 10.0}, 1.0),
    ({"success_return": 10.5}, 0.0),
    ({"success": "terminated", "success_return": 10.5}, 1.0),
    ({"success": "return", "success_return": 9.0}, 1.0),
    ({"success": "info"}, None),
])  # fmt: skip
def test_what_success_means_can_be_chosen(settings, expected):
    run = trainer(**settings)
    run.train(total_steps=40)
    assert run.record.latest.get("success_rate") == expected


def test_success_is_what_the_environment_says_if_it_does():
    third = pytest.approx(1 / 3, abs=0.1)
    for rule, expected in (("auto", third), ("info", third), ("terminated", 0)):
        with closing(ludus.make_env(Told, 2, num_workers=0)) as env:
            run = trainer(env, success=rule)
            run.train(total_steps=120)
            assert run.record.recent.success_rate == expected


def test_thresholds_are_gymnasiums():
    for name in ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"):
        known = -200.0 if name == "Pendulum-v1" else gymnasium.spec(name).reward_threshold
        assert ludus.make_env(f"jax:{name}", 1).return_threshold == known, name
        with closing(ludus.make_env(f"gym:{name}", 1)) as env:
            assert env.return_threshold == known, name


def test_loguru_is_told_as_often_as_there_are_blocks():
    with pytest.raises(ludus.LudusError, match="loguru=true: is told as often as log_frequency says, which is 0"):
        trainer(loguru=True)


def test_success_by_return_needs_one():
    with pytest.raises(ludus.LudusError, match=r"success=return: .* give success_return"):
        trainer(success="return")
    with pytest.raises(ludus.LudusError, match="success=luck: must be one of auto, info, return, terminated"):
        trainer(success="luck")


@pytest.mark.requirement("S0.18")
def test_the_log_goes_to_the_users_sinks_and_obeys_their_level(tmp_path):
    from loguru import logger

    logger.remove()
    heard, errors = [], []
    sinks = [logger.add(heard.append, level="INFO", format="{message}"), logger.add(errors.append, level="ERROR")]
    try:
        trainer(log_frequency=2, loguru=True).train(total_steps=160)
    finally:
        for sink in sinks:
            logger.remove(sink)
    assert [re.match(r"iteration (\d+) ·", line)[1] for line in heard] == ["2", "4"]
    for line in heard:
        assert re.search(r"policy_loss -?[\d.e-]+ · value_loss [\d.e-]+ · episode_return_mean 10$", line.strip()), line
    assert not errors


@pytest.mark.requirement("S0.18")
def test_import_adds_no_sink_and_writes_no_file(tmp_path):
    code = (
        "from loguru import logger; before = dict(logger._core.handlers); import ludus; ludus.Trainer; ludus.PPO;"
        "assert logger._core.handlers.keys() == before.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.iterdir())


@pytest.mark.requirement("S1.24")
def test_log_frequency_one_shows_every_iteration_and_the_folder_keeps_it(tmp_path, capsys):
    trainer(verbose=True, log_frequency=1, run_dir=tmp_path / "run").train(total_steps=200)
    assert len(blocks(capsys.readouterr().err)) == 5
    log = tmp_path / "run" / "log.txt"
    assert log.read_text().count("ROLLOUT STATISTICS") == 5 and log.stat().st_mode & 0o777 == 0o600


def test_single_episodes_are_journalled_if_asked_for(tmp_path):
    run = trainer(run_dir=tmp_path / "run", record_episodes=True)
    run.train(total_steps=80)
    for row in (row for row in read_journal(tmp_path / "run") if row["kind"] == "train"):
        assert row["episode_returns"] == [10.0] * 8 and row["episode_lengths"] == [5] * 8
