"""Where things lie that tests read."""

from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
DOCS = ROOT / "docs" / "en"
GOLDEN = TESTS / "golden"
"""Runs and policies that earlier versions wrote."""
