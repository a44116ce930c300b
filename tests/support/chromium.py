"""The browser that pages are opened in."""

import shutil

import pytest

PATH = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDED = pytest.mark.skipif(PATH is None, reason="no Chromium here (apt-get install chromium)")
