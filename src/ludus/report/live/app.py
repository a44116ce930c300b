"""The routes of the live page, and the check that every request passes first."""

import asyncio
import contextlib
import os
import re
import time
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import BinaryIO

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ludus.report.live.assets import ASSETS, asset
from ludus.report.live.auth import Access, check_form
from ludus.report.live.connection import Connection
from ludus.report.live.run_files import open_newest_video
from ludus.report.live.run_index import KEY, RunEntry, RunIndex
from ludus.report.live.run_questions import NoQuestionError, RunQuestions
from ludus.report.live.run_view import RunView
from ludus.report.live.stream import PageUpdates
from ludus.runs.limits import reason
from ludus.runs.strict_json import strict_json
from ludus.runtime.preference_file import ANSWERS
from ludus.types import LudusError

MAX_STREAMS = 16
"""Pages that are open at the same time."""
PERIOD_SECONDS, HURRY_SECONDS, PING_SECONDS = 1.0, 0.05, 15.0
KEPT_SECONDS = 60.0
"""Seconds for which the rows read of a run are kept after its last page was closed."""
CHUNK_BYTES = 1 << 18
NUMBER = re.compile("[0-9]{1,9}")
"""Of a question."""
NO_STORE = {"Cache-Control": "no-store"}


class AccessCheck:
    """Middleware: refuses what is malformed, comes from another site, or lacks the token where one is needed."""

    def __init__(self, app: ASGIApp, access: Access):
        """Stand before an application."""
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        request = Request(scope, receive)
        try:
            await self._check(request)
        except HTTPException as refused:
            await _refusal(request, refused)(scope, receive, send)
        except ClientDisconnect:
            return
        else:
            await self.app(scope, receive, send)

    async def _check(self, request: Request) -> None:
        connection: Connection = request.state.connection
        check_form(request)
        await request.body()  # no route needs one
        connection.request_received()
        self.access.check(request)
        if self.access.has_token(request):
            connection.has_token = True
        elif request.method != "GET" or request.scope["path"] not in ASSETS:
            raise HTTPException(403, "open the address that ludus watch printed, token and all")


class LivePage:
    """The page of one folder: its list of runs, and the views of the runs that pages show."""

    def __init__(self, folder: Path):
        """Read nothing yet."""
        self.index = RunIndex(folder)
        self._views: dict[str, tuple[RunView, float]] = {}

    def application(self, access: Access) -> Starlette:
        """Return the page as an ASGI application."""
        routes = [
            *(Route(path, _send_asset) for path in ASSETS),
            Route("/events", self._events),
            Route("/runs/{key}/video", self._video),
            Route("/runs/{key}/stop", self._stop, methods=["POST"]),
            Route("/runs/{key}/questions/{number}", self._question),
            Route("/runs/{key}/questions/{number}/picture", self._picture),
            Route("/runs/{key}/questions/{number}/{answer}", self._answer, methods=["POST"]),
        ]
        application = Starlette(
            routes=routes,
            middleware=[Middleware(AccessCheck, access=access)],
            exception_handlers={HTTPException: _refusal},
        )
        application.router.redirect_slashes = False
        return application

    def warm_up(self) -> None:
        """Do now what the first request would have to wait for."""
        self.index.refresh()
        asset("/")

    def _run(self, request: Request) -> RunEntry:
        """Return the run that a path names; the name is looked up, never made into a path."""
        run = self.index.runs.get(request.path_params["key"])
        if run is None:
            raise HTTPException(404, "there is no such run")
        return run

    async def _video(self, request: Request) -> Response:
        found = await asyncio.to_thread(open_newest_video, self._run(request).path)
        if found is None:
            raise HTTPException(404, "there is no video yet")
        file, media_type = found
        headers = {"Content-Length": str(os.fstat(file.fileno()).st_size), **NO_STORE}
        closing = BackgroundTask(file.close)
        return StreamingResponse(_chunks(file), headers=headers, media_type=media_type, background=closing)

    async def _stop(self, request: Request) -> Response:
        with _refusing():
            answer = await asyncio.to_thread(self.index.stop, self._run(request).key)
        return PlainTextResponse(answer, headers=NO_STORE)

    async def _questions(self, request: Request) -> tuple[RunQuestions, int]:
        """Return the questions of the run that a path names, and the number of one."""
        key, number = self._run(request).key, request.path_params["number"]
        view = await self._view(key) if NUMBER.fullmatch(number) else None
        if view is None:
            raise HTTPException(404, "there is no such question")
        return view.questions, int(number)

    async def _question(self, request: Request) -> Response:
        questions, number = await self._questions(request)
        with _refusing():
            clip = await asyncio.to_thread(questions.clip, number)
        return Response(strict_json(clip), headers=NO_STORE, media_type="application/json")

    async def _picture(self, request: Request) -> Response:
        questions, number = await self._questions(request)
        with _refusing():
            picture = await asyncio.to_thread(questions.picture, number)
        if picture is None:
            return Response(status_code=204, headers=NO_STORE)
        return Response(picture, headers=NO_STORE, media_type="image/png")

    async def _answer(self, request: Request) -> Response:
        prefer = request.path_params["answer"]
        if prefer not in ANSWERS:
            raise HTTPException(404, "an answer is first, second or equal")
        questions, number = await self._questions(request)
        with _refusing():
            state = await asyncio.to_thread(questions.answer, number, prefer)
        return Response(strict_json(state), headers=NO_STORE, media_type="application/json")

    async def _events(self, request: Request) -> Response:
        key = request.query_params.get("run")
        if key is not None and not KEY.fullmatch(key):
            raise HTTPException(400, "a run is named by its number")
        connection: Connection = request.state.connection
        if connection.count_streams() >= MAX_STREAMS:
            raise HTTPException(503, "too many pages are open")
        connection.is_stream = True
        return StreamingResponse(self._updates(key, connection), headers=NO_STORE, media_type="text/event-stream")

    async def _updates(self, key: str | None, connection: Connection) -> AsyncIterator[bytes]:
        """Yield what is new as server-sent events until the page is closed or the server ends."""
        updates = PageUpdates(self.index, None)
        last, is_closing = time.monotonic(), False
        while not is_closing:
            await asyncio.to_thread(self.index.refresh)
            updates.view = await self._view(key)
            update = await asyncio.to_thread(updates.next_update)
            if update or time.monotonic() - last > PING_SECONDS:
                last = time.monotonic()
                yield update or b": still here\n\n"
            is_closing = await connection.is_closing_within(HURRY_SECONDS if updates.has_more else PERIOD_SECONDS)

    async def _view(self, key: str | None) -> RunView | None:
        """Return the view of a run, read up to now; forget views that no page shows any more."""
        now = time.monotonic()
        self._views = {name: entry for name, entry in self._views.items() if now - entry[1] < KEPT_SECONDS}
        run = self.index.runs.get(key) if key else None
        if run is None:
            return None
        view = self._views[run.key][0] if run.key in self._views else RunView(run)
        if view.entry is not run:  # the folder was gone meanwhile, and another one has its name now
            view = RunView(run)
        self._views[run.key] = view, now
        await asyncio.to_thread(view.refresh, self.index.is_asked_to_stop(run))
        return view


async def _send_asset(request: Request) -> Response:
    found = await asyncio.to_thread(asset, request.scope["path"])
    return Response(found.content, headers={"Cache-Control": found.cache_control}, media_type=found.media_type)


@contextlib.contextmanager
def _refusing() -> Generator[None]:
    """Answer what cannot be done with the reason."""
    try:
        yield
    except (LudusError, OSError) as error:
        raise HTTPException(404 if isinstance(error, NoQuestionError) else 409, reason(error)) from error


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while data := file.read(CHUNK_BYTES):
        yield data


def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, NO_STORE)
