"""Figures as PNG files, drawn by a Chromium that is there anyway, or else by Matplotlib.

Nothing is downloaded and no port is opened. For Chromium the page draws its panels, turns each into a picture and
leaves them as text in its document, which a headless Chromium prints. A figure of several panels is put together from
their pictures.
"""

import base64
import binascii
import html
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from ludus.report.figures.drawing import Figure, Panel
from ludus.report.html import matplotlib_images
from ludus.report.html.page import opening, panel_id, script_of
from ludus.report.places import write_file
from ludus.types import LudusError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FIGURES = "figures"
Draw = Callable[[Iterable[Panel]], dict[str, bytes]]
SECONDS = 180
"""Seconds that Chromium may take."""
COLUMNS = 2
DOCUMENTS: dict[str, tuple[str, ...]] = {
    "episode_progress/step_{steps}": ("returns", "lengths", "return_histogram", "return_trends"),
    "loss_curves/step_{steps}": ("*_loss",),
    "gradient_flow/step_{steps}": ("gradient_flow", "gradient_norm_layers"),
    "kl_divergence/step_{steps}": ("approx_kl", "kl_histogram"),
    "learning_analysis/advanced_learning_curves": ("return_trends", "*_loss", "returns"),
    "stability_analysis/training_stability": ("rolling_mean", "rolling_std", "variation", "share"),
    "training_curves/training_progress": ("returns", "lengths", "*_loss", "entropy"),
    "comprehensive_analysis/episode_statistics": ("return_histogram", "lengths", "rollout_returns", "success_rate"),
    "comprehensive_analysis/training_summary": ("returns", "entropy", "explained_variance", "steps_per_second"),
    "policy_analysis/policy_distribution_step_{steps}": ("histogram/action*", "entropy"),
    "hyperparameter_analysis/hyperparameter_heatmap_final_return": ("sweep/*",),
    "episode_returns": ("returns",),
    "success_rates": ("success_rate",),
    "rollout_returns": ("rollout_returns",),
}
"""The pictures that users of the founding documents know by name, and the panels that each is made of.

One is written if its first panel is there.
"""


def documents(figures: Sequence[Figure], steps: int) -> dict[str, list[Panel]]:
    """Return the named pictures that can be made of these figures, each with its panels."""
    panels = [panel for figure in figures for panel in figure.panels]
    found = {}
    for name, patterns in DOCUMENTS.items():
        chosen = [[panel for panel in panels if fnmatchcase(panel.key, pattern)] for pattern in patterns]
        if chosen[0]:
            found[name.format(steps=steps)] = [panel for group in chosen for panel in group]
    return found


def find_browser() -> str | None:
    """Return a Chromium of this machine, or None."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def write_images(figures: Sequence[Figure], folder: Path, steps: int, draw: Draw | None = None) -> list[Path]:
    """Write the named pictures below a folder; return where they are. LudusError if nothing here can draw them."""
    wanted = documents(figures, steps)
    draw = draw or painter()
    drawn = draw({panel.key: panel for panels in wanted.values() for panel in panels}.values())
    pictures = {name: mosaic([drawn[panel.key] for panel in panels]) for name, panels in wanted.items()}
    return [write_file(folder, f"{name}.png", picture) for name, picture in pictures.items()]


def painter() -> Draw:
    """Return what can draw panels here: Chromium, as they are on the page, or else Matplotlib."""
    if (browser := find_browser()) is not None:
        return partial(photographed, browser)
    if importlib.util.find_spec("matplotlib") is None:
        names = ", ".join(BROWSERS[:3])
        raise LudusError(f"there is no Chromium here to draw them with ({names}), nor Matplotlib (pip install it)")
    return matplotlib_images.draw


def photographed(browser: str, panels: Iterable[Panel]) -> dict[str, bytes]:
    """Return each panel as a PNG."""
    panels = list(panels)
    script = script_of(panels)
    page = f"{opening('figures', script, 'export')}<body><script>{script}</script></body></html>"
    with tempfile.TemporaryDirectory(prefix="ludus-figures-") as scratch:
        path = Path(scratch, "page.html")
        path.write_text(page, encoding="utf-8")
        text = _printed(browser, path, Path(scratch, "profile"))
    return _pictures(text, panels)


def _printed(browser: str, page: Path, profile: Path) -> str:
    """Return the document that a page has made of itself."""
    words = [browser, "--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions"]
    words += ["--disable-background-networking", f"--user-data-dir={profile}", "--virtual-time-budget=1000000"]
    words += ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []  # Chromium's own rule for root
    try:
        done = subprocess.run(
            [*words, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LudusError(f"{browser}: did not draw the figures within {SECONDS} s") from error
    except OSError as error:
        raise LudusError(f"{browser}: cannot be run ({error.strerror})") from error
    return done.stdout


def _pictures(text: str, panels: Sequence[Panel]) -> dict[str, bytes]:
    found = re.search(r'<pre id="images">(.*?)</pre>', text, re.DOTALL)
    try:
        urls = json.loads(html.unescape(found.group(1))) if found else {}
        return {panel.key: base64.b64decode(urls[panel_id(panel)].partition(",")[2]) for panel in panels}
    except (ValueError, KeyError, AttributeError, binascii.Error) as error:
        raise LudusError("Chromium did not draw the figures; ludus report writes the page all the same") from error


def mosaic(pictures: Sequence[bytes]) -> bytes:
    """Return pictures of equal size as one, in rows of two."""
    if len(pictures) == 1:
        return pictures[0]
    from PIL import Image

    tiles = [Image.open(io.BytesIO(picture)).convert("RGB") for picture in pictures]
    width, height = tiles[0].size
    rows = -(-len(tiles) // COLUMNS)
    whole = Image.new("RGB", (width * COLUMNS, height * rows), "white")
    for i, tile in enumerate(tiles):
        whole.paste(tile, (width * (i % COLUMNS), height * (i // COLUMNS)))
    out = io.BytesIO()
    whole.save(out, "PNG")
    return out.getvalue()
