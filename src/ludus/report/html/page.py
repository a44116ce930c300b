"""The page: one HTML file that needs nothing else, not even a network.

Every text that a run folder brings along is escaped; a content security policy lets the one script of the page run,
known by its hash, and nothing else.
"""

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from ludus import __version__
from ludus.report.comparison import Comparison
from ludus.report.figures.drawing import STEPS, Figure, Panel, colour
from ludus.report.figures.performance import steps_per_second
from ludus.report.tables import estimate_text, number, setting_text, shown
from ludus.report.verdict import verdict
from ludus.runs.console import duration
from ludus.runs.folder import flat
from ludus.runs.strict_json import strict
from ludus.runs.summary import Story
from ludus.runtime.files import read as read_file
from ludus.types import LudusError

FILMS = "videos"
CLOCKS = {"wall-clock seconds": "elapsed_seconds", "episodes": "episodes"}
"""The horizontal axes that a reader may choose besides steps, and the columns that hold them."""
TICKS = 2000
MOST_FILM = 4 << 20
"""Bytes of a film that is put into the page."""


def text(value: object) -> str:
    """Return a value as text that is text in HTML too."""
    return html.escape(shown(str(value)))


def run_page(story: Story, figures: Sequence[Figure]) -> str:
    """Return the page of one run."""
    name = story.run.path.resolve().name
    title = f"{story.run.environment} · {story.run.algorithm}"
    head = f'<h1>{text(title)}</h1><p class="quiet">{text(name)} · seed {text(story.run.seed)}</p>'
    judged = verdict(story)
    word = judged.word.replace(" ", "-")
    above = (
        f'<div class="verdict {word}"><strong>{text(judged.word.capitalize())}:</strong> {text(judged.evidence)}.</div>'
    )
    above += _facts(story) + _notes(run_notes(story)) + _film(story)
    return _page(f"{title} · {name}", head, above, figures, _settings(story), _clocks(story))


def comparison_page(comparison: Comparison, figures: Sequence[Figure]) -> str:
    """Return the page of several runs."""
    groups = comparison.groups
    environments = dict.fromkeys(group.runs[0].environment for group in groups)
    count = sum(len(group.runs) for group in groups)
    title = f"{', '.join(environments)} · {count} runs"
    head = (
        f'<h1>{text(title)}</h1><p class="quiet">{len(groups)} {"group" if len(groups) == 1 else "groups"} of seeds</p>'
    )
    letters = [group.letter for group in groups]
    members = [
        (group.letter, ", ".join(run.path.name for run in group.runs), ", ".join(str(run.seed) for run in group.runs))
        for group in groups
    ]
    who = _table([("group", "runs", "seeds"), *members], swatches=True)
    differing = [(name, *map(setting_text, values)) for name, values in comparison.differences.items()]
    told = _table([("setting", *letters), *differing]) if differing else "<p>Nothing but the seed.</p>"
    names = dict.fromkeys(name for group in groups for name in group.metrics)
    scores = [(name, *(estimate_text(group.metrics.get(name)) for group in groups)) for name in names]
    above = f"{_notes(comparison.notes + story_notes(comparison))}<section id='runs'><h2>Runs</h2>{who}</section>"
    above += f"<section id='differences'><h2>What was set differently</h2>{told}</section>"
    below = _table_section(
        "scores",
        "Figures",
        [("figure", *letters), *scores],
        "Interquartile mean over seeds [95% bootstrap interval]; figures of training are means over the last tenth.",
    )
    return _page(title, head, above, figures, below)


def run_notes(story: Story) -> list[str]:
    """Return what a reader should know before believing the figures."""
    notes = []
    if story.is_empty:
        notes.append("The journal has no row yet: nothing can be drawn.")
    if story.damage:
        notes.append(story.damage)
    reason = story.run.identity.get("exit_reason")
    if story.run.status == "failed" and reason:
        notes.append(f"The run failed: {reason}")
    if story.run.status == "killed":
        notes.append("The process ended without a word; ludus resume goes on with the run.")
    return notes


def story_notes(comparison: Comparison) -> list[str]:
    """Return the notes of single runs, each with its name."""
    stories = [story for group in comparison.groups for story in group.stories]
    told = [(story, note) for story in stories for note in run_notes(story) if note != story.damage]  # it is told above
    return [f"{story.run.path.name}: {note}" for story, note in told]


def run_facts(story: Story) -> list[tuple[str, str, str | None]]:
    """Return what a reader asks first, each as a name, a value and perhaps more about it."""
    score, best = story.score, story.best
    seconds, speed = story.total("elapsed_seconds"), steps_per_second(story)
    return [
        (
            "score",
            "none yet" if score is None else number(score.mean),
            score and f"95% interval [{number(score.low)}, {number(score.high)}], {score.episodes} episodes",
        ),
        ("best evaluation", "none" if best is None else number(best[1]), best and f"at {best[0]:,.0f} steps"),
        *([] if (judged := story.best_by) is None else [_best_by(judged)]),
        ("target", "unknown" if story.target is None else number(story.target), None),
        ("steps", _count(story.total("steps")), f"{_count(story.total('episodes'))} episodes"),
        (
            "wall time",
            "none" if seconds is None else duration(seconds),
            None if speed is None else f"{speed:,.0f} steps/s",
        ),
        ("status", story.run.status, story.run.identity.get("exit_reason") if story.run.status == "finished" else None),
        ("resumed", *_resumes(story)),
        ("device", _devices(story), _versions(story)),
    ]


def _best_by(best: dict[str, Any]) -> tuple[str, str, str]:
    """Return what the best policy came to by the figure that it was judged by."""
    which = {"max": "the highest", "min": "the lowest"}[best["mode"]]
    return f"best by {best['by']}", number(best["value"]), f"{which}, at {best['steps']:,} steps"


def _facts(story: Story) -> str:
    cells = [
        f"<div><dt>{text(name)}</dt><dd>{text(value)}{f'<small>{text(more)}</small>' if more else ''}</dd></div>"
        for name, value, more in run_facts(story)
    ]
    return f'<dl class="facts">{"".join(cells)}</dl>'


def _count(value: float | None) -> str:
    return "0" if value is None else f"{value:,.0f}"


def _resumes(story: Story) -> tuple[str, str | None]:
    if not story.resumes:
        return "never", None
    told = [f"at {entry.get('steps', '?')} steps ({entry.get('level', '?')})" for entry in story.resumes[-3:]]
    times = len(story.resumes)
    return f"{times} time{'s' if times > 1 else ''}", ("... " if times > 3 else "") + ", ".join(told)


def _devices(story: Story) -> str:
    devices = story.run.identity.get("devices")
    return ", ".join(map(str, devices)) if isinstance(devices, list) and devices else "unknown"


def _versions(story: Story) -> str | None:
    versions = story.run.identity.get("versions")
    if not isinstance(versions, dict):
        return None
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _settings(story: Story) -> str:
    cells = [
        f"<div><dt>{text(name)}</dt><dd>{text(setting_text(value))}</dd></div>"
        for name, value in flat(story.run.config)
    ]
    summary = "<summary>Settings</summary>"
    return (
        f'<section id="settings"><details open>{summary}<dl class="settings">{"".join(cells)}</dl></details></section>'
    )


def _film(story: Story) -> str:
    """Show the agent at play, if a film of it is there and small enough to travel inside the page."""
    films = sorted(
        (story.run.path / FILMS).glob("*.mp4"), key=lambda path: (path.stem == "final", path.stat().st_mtime)
    )
    for film in reversed(films):
        try:
            data = base64.b64encode(read_file(film, MOST_FILM)).decode()
        except OSError:  # a link, or too large
            continue
        about = f'<p class="about">{text(film.name)}, one of {len(films)} in {text(FILMS)}/.</p>'
        shown_film = f'<video controls loop muted playsinline src="data:video/mp4;base64,{data}"></video>'
        return f'<section id="film"><h2>At play</h2>{about}{shown_film}</section>'
    return ""


def _notes(notes: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{text(note)}</li>" for note in notes)}</ul>' if notes else ""


def _table(rows: Sequence[Sequence[str]], swatches: bool = False) -> str:
    head, *body = rows
    lines = ["<tr>" + "".join(f'<th scope="col">{text(cell)}</th>' for cell in head) + "</tr>"]
    for i, row in enumerate(body):
        swatch = f'<span class="swatch" style="background:{colour(i)}"></span>' if swatches else ""
        first, *others = row
        cells = "".join(f"<td>{text(cell)}</td>" for cell in others)
        lines.append(f'<tr><th scope="row">{swatch}{text(first)}</th>{cells}</tr>')
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _table_section(key: str, title: str, rows: Sequence[Sequence[str]], about: str = "") -> str:
    told = f'<p class="about">{text(about)}</p>' if about else ""
    return f'<section id="{key}"><details open><summary>{text(title)}</summary>{told}{_table(rows)}</details></section>'


def _clocks(story: Story) -> dict[str, dict[str, list[float]]]:
    """Return what can stand below the curves instead of steps, each by the steps that it belongs to."""
    train, found = story.train, {}
    for name, column in CLOCKS.items():
        steps, values = train.column("steps"), train.column(column)
        known = np.flatnonzero(np.isfinite(steps) & np.isfinite(values))
        if len(known) > 1:
            kept = np.unique(known[np.linspace(0, len(known) - 1, TICKS).astype(int)])
            found[name] = {"steps": steps[kept].tolist(), "values": values[kept].tolist()}
    return found


def _choice(clocks: dict[str, Any]) -> str:
    names = "".join(f"<option>{text(name)}</option>" for name in (STEPS, *clocks))
    return f'<label class="axis quiet">Curves over <select id="axis">{names}</select></label>' if clocks else ""


def _page(
    title: str, head: str, above: str, figures: Sequence[Figure], below: str, clocks: dict[str, Any] | None = None
) -> str:
    clocks = clocks or {}
    script = script_of([panel for figure in figures for panel in figure.panels], clocks)
    links = [f'<a href="#{figure.key}">{text(figure.title)}</a>' for figure in figures]
    sections = "".join(map(_section, figures))
    return f"""{opening(title, script)}
<body>
<header><div class="top"><div>{head}</div><button id="theme" type="button">Dark</button></div>
{above}
<nav aria-label="Figures">{"".join(links)}</nav>{_choice(clocks)}</header>
<main>{sections}{below}</main>
<footer>Made by ludus {text(__version__)} from run folders alone. Drag to zoom, double-click to zoom out, click a name
in a legend to hide its curve.</footer>
<script>{script}</script>
</body>
</html>
"""


def opening(title: str, script: str, mode: str = "page") -> str:
    """Return the beginning of a page whose one script is this one."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
    policy += "img-src data: blob:; media-src data:"
    return f"""<!doctype html>
<html lang="en" data-mode="{mode}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{text(title)}</title>
<style>{resource("page.css")}</style>
</head>"""


def _section(figure: Figure) -> str:
    wide = len(figure.panels) == 1
    small = [panel for panel in figure.panels if panel.key != "returns"]
    three = " three" if len(small) % 3 == 0 else ""
    panels = "".join(_panel(panel, wide or panel.key == "returns") for panel in figure.panels)
    about = f'<p class="about">{text(figure.about)}</p>' if figure.about else ""
    inner = f'<h2>{text(figure.title)}</h2>{about}<div class="panels{three}">{panels}</div>'
    return f'<section id="{text(figure.key)}">{inner}</section>'


def _panel(panel: Panel, is_wide: bool) -> str:
    wide, name = " wide" if is_wide else "", text(panel_id(panel))
    label = text(f"{panel.title}: {panel.y or 'value'} against {panel.x or 'kind'}")
    plot = f'<div class="plot" id="{name}" role="img" aria-label="{label}"></div>'
    return f'<div class="panel{wide}"><h3>{text(panel.title)}</h3>{plot}</div>'


def panel_id(panel: Panel) -> str:
    """Return the identifier of a panel in its page."""
    return f"panel-{panel.key}"


def script_of(panels: Sequence[Panel], clocks: dict[str, Any] | None = None) -> str:
    """Return the one script of a page: plotly.js, what is to be drawn, and who draws it."""
    made = _literal([drawn(panel) for panel in panels])
    return f"{plotly_js()}\nconst PANELS = {made};\nconst CLOCKS = {_literal(clocks or {})};\n{resource('page.js')}"


def _literal(value: Any) -> str:
    """Return a value as JavaScript writes it inside HTML."""
    # In a script, HTML ends at "</script" whatever JavaScript thinks: no "<" of a text may stand as it is.
    return json.dumps(strict(value), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def drawn(panel: Panel) -> dict[str, Any]:
    """Return a panel for the script; plotly.js knows a little HTML in its texts, so they are escaped for it too."""
    return {
        "id": panel_id(panel),
        "title": text(panel.title),
        "traces": [_escaped(trace) for trace in panel.traces],
        "x": text(panel.x),
        "y": text(panel.y),
        "log": panel.is_log,
        "guides": [[value, text(label)] for value, label in panel.guides],
        "layout": panel.layout,
    }


def _escaped(trace: dict[str, Any]) -> dict[str, Any]:
    """Return a trace whose texts, such as the name of a run, cannot be taken for anything but text."""
    texts = {name: text(trace[name]) for name in ("name",) if name in trace}
    lists = {name: [_cell(x) for x in trace[name]] for name in ("x", "y", "text") if isinstance(trace.get(name), list)}
    return trace | texts | lists


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return [_cell(entry) for entry in value]
    return text(value) if isinstance(value, str) else value


@cache
def resource(name: str) -> str:
    """Return a text that lies beside this file."""
    return (files("ludus.report.html") / name).read_text(encoding="utf-8")


@cache
def plotly_js() -> str:
    """Return plotly.js, which the Python package brings along."""
    try:
        return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise LudusError("a report needs plotly (pip install plotly)") from error
