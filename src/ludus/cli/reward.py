"""The verb `reward`: models of rewards are fitted to preferences, judged by them, and people are asked for more."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ludus.cli.arguments import Parser, newest_run
from ludus.runs.strict_json import strict
from ludus.types import LudusError

if TYPE_CHECKING:
    from ludus.algorithms.preference_reward import PreferenceReward

USAGE = """\
usage: ludus reward fit --preferences FILE --segments FILE --out MODEL [--steps N] [--seed N] [reward.key=value ...]
       ludus reward evaluate MODEL --segments FILE [--preferences FILE] [--json]
       ludus reward ask [RUN]

Rewards that are learnt from preferences. Segments are the episodes of demonstrations, all of one length; preferences
are lines such as {"first": 3, "second": 17, "prefer": "first"} about their numbers.

  fit       learn a reward model from preferences, for ludus train env=ID reward=preferences reward.model=MODEL
  evaluate  how often a model agrees with preferences, and how it goes with the true return where that is known
  ask       answer the questions of a run that was begun with reward.labeller=file
"""
ACTIONS = ("fit", "evaluate", "ask")


def reward(words: list[str]) -> int:
    """Do one of its actions."""
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    action, *rest = words
    if action not in ACTIONS:
        raise LudusError(f"reward {action}: no such action; there are {', '.join(ACTIONS)}")
    return {"fit": _fit, "evaluate": _evaluate, "ask": _ask}[action](rest)


def _fit(words: list[str]) -> int:
    parser = Parser(prog="ludus reward fit", description="Learn a reward model from preferences between segments.")
    parser.add_argument("words", nargs="*", metavar="reward.key=value", help="as of ludus train reward=preferences")
    parser.add_argument("--preferences", type=Path, required=True, metavar="FILE", help="lines of JSON")
    parser.add_argument("--segments", type=Path, required=True, metavar="FILE", help="demonstrations of one length")
    parser.add_argument("--out", type=Path, required=True, metavar="MODEL", help="a new file *.safetensors")
    parser.add_argument("--steps", type=int, default=2000, metavar="N", help="gradient steps (default: 2000)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="decides all chance (default: 0)")
    given = parser.parse_intermixed_args(words)
    for name, value, least in (("steps", given.steps, 1), ("seed", given.seed, 0)):
        if value < least:
            raise LudusError(f"--{name}={value}: must be at least {least}")
    if given.out.exists():
        raise LudusError(f"{given.out}: exists already; choose another name, or remove it")
    from ludus.algorithms.offline_reward import fit_preferences
    from ludus.algorithms.reward_model import save_reward_model
    from ludus.runtime.demonstration_file import read_demonstrations
    from ludus.runtime.preference_file import read_preferences

    source = _source(given.words, given.steps)
    segments = read_demonstrations(given.segments)
    preferences = read_preferences(given.preferences, segments.num_episodes)
    try:
        model, figures = fit_preferences(source, segments, preferences, given.seed)
    except LudusError as error:
        raise LudusError(f"{given.segments}: {error}") from error
    save_reward_model(model, given.out)
    accuracy, error = figures["reward_accuracy"], figures["reward_calibration_error"]
    print(f"{given.out}: {len(preferences.label):,} preferences; of those held out {accuracy:.1%} are agreed with")
    print(f"calibration error {error:.3f}, loss {figures['reward_loss']:.4f}")
    return 0


def _source(words: list[str], steps: int) -> "PreferenceReward":
    """Return the reward that words describe."""
    if wrong := [word for word in words if not word.startswith("reward.")]:
        raise LudusError(f"{wrong[0]}: a reward model is fitted with reward.key=value alone")
    from ludus.algorithms.registry import build
    from ludus.training.config import compose

    config = compose(["env=none", "preset=null", "reward=preferences", *words, f"reward.fit_steps={steps}"])
    made: Any = build(config.algorithm["reward"])
    return made


def _evaluate(words: list[str]) -> int:
    parser = Parser(prog="ludus reward evaluate", description="Judge a reward model by segments and preferences.")
    parser.add_argument("model", type=Path, metavar="MODEL", help="its file, or a run folder")
    parser.add_argument("--segments", type=Path, required=True, metavar="FILE", help="demonstrations of one length")
    parser.add_argument("--preferences", type=Path, metavar="FILE", help="lines of JSON")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(words)
    from ludus.algorithms.offline_reward import evaluate_reward
    from ludus.algorithms.reward_model import load_reward_model
    from ludus.runtime.demonstration_file import read_demonstrations
    from ludus.runtime.demonstrations import check_spaces
    from ludus.runtime.preference_file import read_preferences

    model, segments = load_reward_model(given.model), read_demonstrations(given.segments)
    preferences = None if given.preferences is None else read_preferences(given.preferences, segments.num_episodes)
    try:
        check_spaces(segments, model.spec.observation_space, model.spec.action_space)
        figures = evaluate_reward(model, segments, preferences)
    except LudusError as error:
        raise LudusError(f"{given.segments}: {error}") from error
    if given.json:
        print(json.dumps(strict(figures)))
    else:
        shown = ((name, f"{x:,}" if isinstance(x, int) else f"{x:.4f}") for name, x in figures.items())
        print(" · ".join(map(" ".join, shown)))
    return 0


def _ask(words: list[str]) -> int:
    parser = Parser(prog="ludus reward ask", description="Answer the questions of a run in the terminal.")
    parser.add_argument("run", type=Path, metavar="RUN", nargs="?", help="run folder (default: the newest in runs/)")
    given = parser.parse_args(words)
    from ludus.runs.questions import Questions

    questions = Questions(given.run or newest_run())
    for number in questions.open:
        print("\n".join([f"question {number + 1} of {questions.count}", *questions.shown(number)]))
        while True:
            answer = input("which is better? 1, 2, = (equal), s (skip), q (leave): ").strip().lower()
            if answer == "q":
                return 0
            if answer == "s":
                break
            if answer in questions.KEYS:
                questions.answer(number, questions.KEYS[answer])
                break
            print("type 1, 2, =, s or q", file=sys.stderr)
    print("no more questions for now")
    return 0
