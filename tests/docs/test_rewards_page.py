"""The page on rewards that are learnt: its tables are those of the code, and its commands run in their order."""

import re
import shlex

import pytest
import rewards_page

from ludus.cli.main import main

FAST = {
    "train": [
        "total_steps=512", "algorithm.batch_size=256", "algorithm.minibatch_size=128", "num_envs=4", "verbose=false",
        "eval_episodes_final=1", "record_behaviour=false",
    ],
    "record": [],
    "reward": [],
}  # fmt: skip


def test_the_page_lists_every_setting_of_every_reward():
    text = rewards_page.PAGE.read_text()
    assert text == rewards_page.written(text)
    assert all(f"\n{title}\n" in text for title in rewards_page.TABLES)


@pytest.mark.slow
def test_its_commands_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda prompt: "1")
    found = re.findall(r"^ *(ludus .*)$", rewards_page.PAGE.read_text(), re.MULTILINE)
    found = [shlex.split(line)[1:] for line in found]
    found = [words for words in found if "algorithm=sac" not in words]  # it is run with those of the other pages
    assert [words[0] for words in found] == [
        "train", "train", "record", "train", "train", "reward", "reward", "reward", "train",
    ]  # fmt: skip
    for words in found:
        if words[0] == "train":
            words += ["reward.fit_steps=5"] * any(word.startswith("reward=") for word in words)
        assert main([*words, *FAST[words[0]]]) == 0, words
