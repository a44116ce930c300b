"""What the tests of reports share."""

import pytest

from ludus import cli


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder; return its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> tuple[int, str, str]:
        code = cli.main([str(word) for word in words])
        return code, *capsys.readouterr()

    return call
