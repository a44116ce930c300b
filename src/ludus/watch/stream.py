"""What one viewer is told: everything once, then only what has changed, a little at a time."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from ludus.report.strict import strict
from ludus.watch.opened import Opened
from ludus.watch.shelf import Shelf, Watched

UPDATE_BYTES = 90_000
"""An update is not larger than this."""
ROWS_BYTES = 20_000
"""Of which rows of the list take this much; panels get what is left by them and by what stands above the figures."""
END = ": end of an update\n\n"
"""A remark, for those who weigh updates."""
FIRST = "panel-returns"
"""The panel that is never behind the others."""


class Viewer:
    """Remembers what one open page knows."""

    def __init__(self, shelf: Shelf, opened: Opened | None):
        """Nothing has been told yet."""
        self.shelf, self.opened = shelf, opened
        self.is_behind = False
        """Whether there was more to tell than one update holds."""
        self._rows: dict[str, tuple[Watched, int]] = {}
        self._parts: dict[str, str] = {}
        self._panels: dict[str, str] = {}
        self._queue: list[str] = []

    def update(self) -> bytes:
        """Return the next update as server-sent events; nothing if nothing has changed."""
        self.is_behind = False
        events = [*self._list()]
        if self.opened:
            events += self._above(self.opened)
            room = UPDATE_BYTES - sum(len(data.encode()) for _, data in events)
            events += self._next_panels(self.opened, room)
        told = "".join(f"event: {name}\ndata: {data}\n\n" for name, data in events)
        return f"{told}{END}".encode() if told else b""

    def _list(self) -> Iterator[tuple[str, str]]:
        runs = self.shelf.runs
        gone = [key for key in self._rows if key not in runs]
        for key in gone:
            del self._rows[key]
        rows, size = [], 0
        for key, run in runs.items():
            if self._rows.get(key) == (run, run.version):
                continue
            row = _json(run.row)
            if rows and size + len(row) > ROWS_BYTES:
                self.is_behind = True
                break
            rows.append(row)
            size += len(row)
            self._rows[key] = run, run.version
        if rows or gone or "list" not in self._parts:
            self._parts["list"] = ""
            yield "runs", f'{{"rows":[{",".join(rows)}],"gone":{json.dumps(gone)}}}'

    def _above(self, opened: Opened) -> Iterator[tuple[str, str]]:
        head = dict(opened.head)
        for name, part in (("log", head.pop("log", "")), ("use", head.pop("use", None)), ("head", head)):
            yield from self._changed(name, part)
        yield from self._changed("outline", opened.outline)

    def _changed(self, name: str, part: Any) -> Iterator[tuple[str, str]]:
        text = _json(part)
        digest = hashlib.sha256(text.encode()).hexdigest()
        if self._parts.get(name) != digest:
            self._parts[name] = digest
            yield name, text

    def _next_panels(self, opened: Opened, room: int) -> Iterator[tuple[str, str]]:
        """Tell panels that have changed, the ones that have waited longest first."""
        panels = opened.panels
        changed = [name for name, (digest, _) in panels.items() if self._panels.get(name) != digest]
        waiting = [name for name in self._queue if name in changed]
        self._queue = waiting + [name for name in changed if name not in waiting]
        if FIRST in self._queue:
            self._queue.remove(FIRST)
            self._queue.insert(0, FIRST)
        told, size = [], 0
        while self._queue and (size := size + len(panels[self._queue[0]][1].encode()) + 1) <= room:
            name = self._queue.pop(0)
            self._panels[name], text = panels[name]
            told.append(text)
        self.is_behind |= any(name not in self._panels for name in self._queue)
        if told:
            yield "panels", f"[{','.join(told)}]"


def _json(value: Any) -> str:
    return json.dumps(strict(value), separators=(",", ":"), allow_nan=False, ensure_ascii=False)
