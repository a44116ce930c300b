"""The tables of settings of `docs/en/rewards.md`, made from the fields of the rewards.

    python tests/support/rewards_page.py

writes them into the page; a test compares.
"""

import inspect
import re

from places import DOCS

from ludus.algorithms.labelled_reward import LabelledReward
from ludus.algorithms.registry import REWARDS
from ludus.algorithms.reward_source import RewardSource
from ludus.training.config_keys import settings_of, table

PAGE = DOCS / "rewards.md"
TABLES = {
    "Those of all rewards:": RewardSource,
    "Those of labels (`preferences` and `regression`):": LabelledReward,
    **{f"`reward={name}`:": kind for name, kind in REWARDS.items()},
}


def rows_of(kind: type) -> str:
    """Return the rows of what a class adds to those that it builds on."""
    own = {f"reward.{name}" for name in inspect.get_annotations(kind)}
    settings = [setting for setting in settings_of(kind(), "reward.") if setting.key in own]
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for setting, line in zip(settings, table(settings), strict=True):
        default = line.split(setting.meaning)[0].split(setting.type_name, 1)[1].strip()
        lines.append(f"| `{setting.key}` | `{default}` | {setting.meaning.replace('|', '/')} |")
    return "".join(f"{line}\n" for line in lines)


def written(page: str) -> str:
    """Return the page with every table as it should be."""
    for title, kind in TABLES.items():
        head, mark, rest = page.partition(f"\n{title}\n\n")
        page = (
            head + mark + re.sub(r"(^\|.*\n)+", lambda _, kind=kind: rows_of(kind), rest, count=1, flags=re.MULTILINE)
        )
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
