"""The tables of `docs/en/metrics.md`, made from the table of figures and from what each algorithm says of its own.

    python tests/support/metrics_page.py

writes them into the page; a test compares.
"""

import re

from places import DOCS

from ludus.algorithms import bc, bc_sac, diagnostics, kl_penalty, learned_reward, ppo, sac, saturation
from ludus.runs import metrics
from ludus.runs.metrics import Metric

PAGE = DOCS / "metrics.md"
SECTIONS: dict[str, tuple[Metric, ...] | dict[str, str]] = {
    "Every iteration": metrics.ITERATION,
    "Single episodes": metrics.EPISODES,
    "Whole episodes": metrics.WHOLE_EPISODES,
    "Where the time went": metrics.TIMES,
    "The environment's own": metrics.INFO,
    "Scenarios and curricula": metrics.SCENARIOS,
    "PPO": ppo.METRICS,
    "PPO with a penalty on divergence": kl_penalty.METRICS,
    "SAC": sac.METRICS,
    "BC": bc.METRICS,
    "BC and SAC at once": {name: bc_sac.METRICS[name] for name in ("policy_loss", "imitation", "nll", "action_error")},
    "Learned rewards": learned_reward.METRICS,
    "Health": diagnostics.METRICS | saturation.METRICS,
    "Histograms": diagnostics.HISTOGRAMS,
    "Evaluations": metrics.EVALUATION,
}


def table_of(title: str) -> str:
    """Return the table of a section; an algorithm says what its figures mean, the table knows their units."""
    section = SECTIONS[title]
    meanings = section if isinstance(section, dict) else {metric.name: metric.meaning for metric in section}
    lines = ["| name | meaning | unit |", "|---|---|---|"]
    for name, meaning in meanings.items():
        cells = (f"`{name}`", meaning.replace("|", "\\|"), metrics.metric_of(name).unit)
        lines.append("| " + " | ".join(cells).rstrip() + " |")
    return "".join(f"{line}\n" for line in lines)


def written(page: str) -> str:
    """Return the page with every table as it should be."""
    for title in SECTIONS:
        head, mark, rest = page.partition(f"\n## {title}\n")
        section, end, rest = rest.partition("\n## ")
        section = re.sub(r"(^\|.*\n)+", lambda _, title=title: table_of(title), section, count=1, flags=re.MULTILINE)
        page = head + mark + section + end + rest
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
