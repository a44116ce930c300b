"""Whatever the moment at which a process dies, there is a whole checkpoint, and the next save works."""

import json
import subprocess
import sys
from collections import Counter

import pytest
from places import SUPPORT

pytestmark = pytest.mark.slow


@pytest.mark.requirement("S4.16")
def test_at_every_crash_point_of_saving_the_old_or_the_new_checkpoint_is_left_whole(tmp_path):
    script = SUPPORT / "crash_points.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row for row in rows if row["failure"]] == []
    # Every kind of operation was a crash point, before and after, and both outcomes were seen.
    events = Counter(row["event"] for row in rows)
    for what in ("open", "write", "fsync", "rename", "unlink", "mkdir"):
        assert events[f"before {what}"] == events[f"after {what}"] > 0, what
    assert events["after raw unlink"] > 0  # the files of a folder that is removed, one by one
    for scenario in {row["scenario"] for row in rows} - {"run folder"}:
        assert {row["left"] for row in rows if row["scenario"] == scenario} == {"old", "new"}
    assert len(rows) > 300
