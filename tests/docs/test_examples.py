"""Every example runs, says what it promises, and stays short."""

import ast
import subprocess
import sys

import pytest
from places import ROOT

pytestmark = pytest.mark.slow

SHORT = {"14_sequence_training": ["2"]}
"""Arguments that make long examples short."""
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.requirement("S0.2", "S0.32", "S2.23", "S2.32")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, tmp_path):
    done = subprocess.run(
        [sys.executable, path, *SHORT.get(path.stem, [])], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_one_idea(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 60 and ast.get_docstring(ast.parse(text))


def test_examples_are_numbered_without_gaps():
    assert [int(path.stem.partition("_")[0]) for path in EXAMPLES] == list(range(1, len(EXAMPLES) + 1))


def test_examples_use_nothing_private():
    for path in EXAMPLES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                is_private = node.attr.startswith("_") and not node.attr.startswith("__")
                assert not is_private or node.attr in ("_replace", "_observation"), (path, node.attr)
