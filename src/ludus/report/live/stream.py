"""The updates of one open page: everything once, then only what has changed, a limited amount at a time."""

import hashlib
from collections.abc import Iterator
from typing import Any

from ludus.report.live.run_index import RunEntry, RunIndex
from ludus.report.live.run_view import RunView
from ludus.runs.strict_json import strict_json

UPDATE_BYTES = 90_000
"""The largest size of an update."""
ROWS_BYTES = 20_000
"""The part of it for rows of the list. Panels get what the rows and the texts above the figures leave."""
END = ": end of an update\n\n"
"""A comment after each update, for those who measure updates."""
FIRST = "panel-returns"
"""This panel is sent before all others."""

Event = tuple[str, str]
"""The name and the data of a server-sent event."""


class PageUpdates:
    """Makes the updates of one open page, and remembers what the page has got."""

    def __init__(self, index: RunIndex, view: RunView | None):
        """`view` is the run that the page shows, if it shows one."""
        self.index, self.view = index, view
        self.has_more = False
        """Whether there was more to send than one update may hold."""
        self._rows: dict[str, tuple[RunEntry, int]] = {}
        self._parts: dict[str, str] = {}
        self._panels: dict[str, str] = {}
        self._queue: list[str] = []

    def next_update(self) -> bytes:
        """Return the next update as server-sent events; empty if nothing has changed."""
        self.has_more = False
        events = [*self._list()]
        if self.view:
            events += self._above_figures(self.view)
            room = UPDATE_BYTES - sum(len(data.encode()) for _, data in events)
            events += self._next_panels(self.view, room)
        text = "".join(f"event: {name}\ndata: {data}\n\n" for name, data in events)
        return f"{text}{END}".encode() if text else b""

    def _list(self) -> Iterator[Event]:
        runs = self.index.runs
        gone = [key for key in self._rows if key not in runs]
        for key in gone:
            del self._rows[key]
        rows, size = [], 0
        for key, run in runs.items():
            if self._rows.get(key) == (run, run.version):
                continue
            row = strict_json(run.row)
            if rows and size + len(row) > ROWS_BYTES:
                self.has_more = True
                break
            rows.append(row)
            size += len(row)
            self._rows[key] = run, run.version
        if rows or gone or "list" not in self._parts:
            self._parts["list"] = ""
            yield "runs", f'{{"rows":[{",".join(rows)}],"gone":{strict_json(gone)}}}'

    def _above_figures(self, view: RunView) -> Iterator[Event]:
        head = dict(view.head)
        for name, part in (("log", head.pop("log", "")), ("use", head.pop("use", None)), ("head", head)):
            yield from self._if_changed(name, part)
        yield from self._if_changed("outline", view.outline)

    def _if_changed(self, name: str, part: Any) -> Iterator[Event]:
        text = strict_json(part)
        digest = hashlib.sha256(text.encode()).hexdigest()
        if self._parts.get(name) != digest:
            self._parts[name] = digest
            yield name, text

    def _next_panels(self, view: RunView, room: int) -> Iterator[Event]:
        """Send changed panels, those that have waited longest first."""
        panels = view.panels
        changed = [name for name, (digest, _) in panels.items() if self._panels.get(name) != digest]
        waiting = [name for name in self._queue if name in changed]
        self._queue = waiting + [name for name in changed if name not in waiting]
        if FIRST in self._queue:
            self._queue.remove(FIRST)
            self._queue.insert(0, FIRST)
        sent, size = [], 0
        while self._queue and (size := size + len(panels[self._queue[0]][1].encode()) + 1) <= room:
            name = self._queue.pop(0)
            self._panels[name], text = panels[name]
            sent.append(text)
        self.has_more |= any(name not in self._panels for name in self._queue)
        if sent:
            yield "panels", f"[{','.join(sent)}]"
