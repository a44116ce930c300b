"""A real MLflow server on loopback, and a proxy before it that makes every kind of trouble."""

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

START_SECONDS = 300.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serving(folder: Path, command: list[str], path: str) -> Iterator[str]:
    """Run a server that is told `--host` and `--port`, until it answers at `path`; end its whole group afterwards."""
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    with (folder / f"server-{port}.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "PATH": _path()},
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(uri + path):
                assert process.poll() is None, (folder / f"server-{port}.log").read_text()[-3000:]
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.2)
            yield uri
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _path() -> str:
    """Where programs are: first beside this interpreter, since MLflow starts uvicorn by its name."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _answers(uri: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(uri, timeout=2) as answer:
        return answer.status == 200
    return False


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    store = ["--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "files")]
    with serving(folder, ["mlflow", "server", "--workers", "1", *store], "/health") as uri:
        yield uri


class Proxy:
    """Stands before a server. `mode` says how it behaves.

    pass: as the server; refuse: nobody listens; error: every answer is 500; hang: no answer, ever; slow: each takes
    `delay` seconds; lost: the server hears everything, and its answers are lost; auth: every answer is 401.
    """

    def __init__(self, target: str):
        self.target = target.removeprefix("http://")
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.mode, self.delay, self.requests = "pass", 0.0, 0
        self._server: ThreadingHTTPServer | None = None
        self.over = threading.Event()
        self.set("pass")

    def set(self, mode: str, delay: float = 0.0) -> None:
        self.mode, self.delay = mode, delay
        if mode == "refuse":
            self._stop()
        elif self._server is None:
            self._server = ThreadingHTTPServer(("127.0.0.1", self.port), type("Handler", (_Handler,), {"proxy": self}))
            self._server.daemon_threads = True
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def _stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.socket.close()
            self._server = None

    def close(self) -> None:
        self.over.set()
        self._stop()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"  # one request for each connection: a change of mode holds for the next one
    proxy: Proxy

    def _answer(self) -> None:
        proxy = self.proxy
        mode, delay = proxy.mode, proxy.delay
        proxy.requests += 1
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if mode in ("error", "auth"):
            self.send_error(500 if mode == "error" else 401)
            return
        if mode == "hang":
            proxy.over.wait(60)
            return
        if mode == "slow":
            proxy.over.wait(delay)
        status, headers, data = self._forward(body)
        if mode != "lost":
            self.send_response(status)
            for name in ("Content-Type",):
                if headers.get(name):
                    self.send_header(name, headers[name])
            self.end_headers()
            self.wfile.write(data)

    def _forward(self, body: bytes) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection(self.proxy.target, timeout=60)
        skipped = ("host", "connection", "accept-encoding")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in skipped}
        connection.request(self.command, self.path, body, {**headers, "Host": self.proxy.target})
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, answer.headers, data

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def log_message(self, *_: Any) -> None:
        pass


class Reader:
    """What MLflow's own client says of a store."""

    def __init__(self, uri: str):
        with quiet():
            from mlflow import MlflowClient

            self.client: Any = MlflowClient(tracking_uri=uri, registry_uri=uri)

    def runs(self, run_id: str) -> list[Any]:
        """Return MLflow's runs that belong to a run of ours, the first first."""
        with quiet():
            experiments = [experiment.experiment_id for experiment in self.client.search_experiments()]
            found = self.client.search_runs(experiments, f"tags.`ludus.run_id` = '{run_id}'")
        return sorted(found, key=lambda run: (run.info.start_time, "ludus.continues" in run.data.tags))

    def points(self, run: Any, key: str) -> list[tuple[int, float, int]]:
        """Return the points of a curve as they are stored: step, value, time."""
        with quiet():
            history = self.client.get_metric_history(run.info.run_id, key)
        return sorted((point.step, point.value, point.timestamp) for point in history)

    def artifacts(self, run: Any, folder: str | None = None) -> list[str]:
        """Return the files of a run."""
        with quiet():
            found = self.client.list_artifacts(run.info.run_id, folder)
        return [name for entry in found for name in (self.artifacts(run, entry.path) if entry.is_dir else [entry.path])]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """MLflow's warnings are not ours to mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
