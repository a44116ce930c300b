"""Take the docs' pictures of a run's report, in a real browser: the top of the page, and its figures of behaviour.

ludus report runs/walker
.venv/bin/python docs/gallery.py runs/walker docs/en/images
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH, HEIGHT = 1280, 860
SHOTS = {
    "report.png": ("light", None),
    "report-losses.png": ("dark", "#losses"),
    "report-gait.png": ("light", "#signals"),
}
"""Pictures: the colours, and the part of the page that is brought into view; None for its top."""


def main(run: str, folder: str) -> None:
    """Open the report of a run and save the pictures."""
    page_file = (Path(run) / "report" / "index.html").resolve()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (colours, part) in SHOTS.items():
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=colours)
            page.goto(page_file.as_uri())
            page.wait_for_timeout(2500)  # figures are drawn as they come into view
            if part is not None:
                page.locator(part).scroll_into_view_if_needed()
                page.evaluate("part => document.querySelector(part).scrollIntoView()", part)
                page.wait_for_timeout(1500)
            page.screenshot(path=Path(folder) / name)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
