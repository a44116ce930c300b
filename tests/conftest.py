"""What all tests share: helper modules beside this file can be imported by name."""

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Programs are compiled once for all test processes; the tests of the cache itself unset this.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "xla"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # many small ones, in every process again
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Most of the time is compilation. What ludus compiles has its own options; this is for what tests compile besides.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")

# What tests import by name is remembered here, never in the configuration folder of whoever runs them.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="ludus-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

with warnings.catch_warnings(), contextlib.suppress(ImportError):
    # Box2D's extension warns while it is imported and crashes the interpreter if that warning is made an error.
    warnings.simplefilter("ignore")
    import Box2D  # noqa: F401


@pytest.fixture(autouse=True, scope="module")
def _few_programs():
    """Let go of a module's compiled programs: each takes memory maps, of which the system allows a process 65,530."""
    yield
    if "jax" in sys.modules:
        import gc

        import jax

        jax.clear_caches()
        gc.collect()


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder; return its exit code, stdout and stderr."""
    from ludus.cli import main as cli

    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> tuple[int, str, str]:
        code = cli.main([str(word) for word in words])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def browser():
    """A real browser."""
    import chromium
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium.PATH, args=["--no-sandbox"])
        yield found
        found.close()
