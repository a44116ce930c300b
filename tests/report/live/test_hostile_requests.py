"""Hostile requests to the live page: none is answered with anything, none changes anything.

Each case is one allowed request with one thing changed, so that the thing that is tried is what refuses it.
"""

import contextlib
import itertools
import os
import re
import socket
import time

import pytest
from run_folders import learning_rows, make_run, write_questions
from starlette.exceptions import HTTPException
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol
from watch_server import Serving, serving

from ludus.report.live import app, assets, auth, connection, process

pytestmark = pytest.mark.slow

SECRET = b"nobody may read this"

HOSTS = (
    "evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}",
    "127.0.0.1.nip.io:{port}", "127.0.0.1:{port}@evil.example", "evil.example#127.0.0.1:{port}", "", None,
    "0.0.0.0:{port}", "2130706433:{port}", "0x7f.1:{port}", "127.1:{port}", "localhost:{port}, evil.example",
    "127.0.0.1:0{port}", "127.0.0.1.:{port}", "[::ffff:127.0.0.1]:{port}", "192.168.0.1:{port}",
)  # fmt: skip
ORIGINS = (
    "http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1", "http://127.0.0.1",
    "http://127.0.0.1:{port}.evil.example", "http://evil.example:{port}", "http://127.0.0.1:{port} http://a", "file://",
    "", "http://user@127.0.0.1:{port}", "HTTP://127.0.0.1:{port}",
)  # fmt: skip
TOKENS = (
    None, "", "wrong", "{token}x", "x{token}", "{half}", "{swapped}", "{token}, {token}", "{token};", "\"{token}\"",
    "Bearer {token}", "{token}\r\nX-Ludus-Token: {token}", "{token}=", "%s{token}",
)  # fmt: skip
PATHS = (
    "/../secret.txt", "/..%2fsecret.txt", "/%2e%2e/secret.txt", "/%252e%252e/secret.txt", "/..\\secret.txt",
    "/runs/../../secret.txt", "/runs/../video", "/runs/..%2f..%2fsecret.txt/video", "/runs/%00/video", "//etc/passwd",
    "/runs//etc/passwd/video", "/runs/{run}/video/../../../secret.txt", "/runs/{run}/../../secret.txt", "/etc/passwd",
    "/runs/{run}/metrics.jsonl", "/runs/{run}/config.yaml", "/runs/{run}", "/runs/{run}/video", "/runs/{linked}/video",
    "/runs/one/video", "/watch.html", "/page.css", "/static/../server.py", "/plotly.js/../../secret.txt", "/.", "/..",
    "http://127.0.0.1:{port}/events", "http://evil.example/", "file:///etc/passwd", "*", "events", "/\x7f",
    "/events/", "/%65vents", "/events?run={run}&run={run}", "/events?run=../secret.txt",
    "/events?run=%2e%2e%2fsecret.txt", "/events?run=", "/events?run={run}x", "/events?=&=",
    "/runs/{run}/questions/-1", "/runs/{run}/questions/2", "/runs/{run}/questions/{digits}",
    "/runs/{run}/questions/%30", "/runs/{run}/questions/2/picture", "/runs/{linked}/questions/0",
    "/runs/{run}/questions/", "/runs/{run}/questions/0/first",
    "/runs/{linked}/questions/0/picture", "/runs/{run}/questions/../../secret.txt", "/runs/{run}/questions/0/../video",
    "/events?a=1&b=2&c=3&d=4&e=5", "/events?token={token}&run=/etc", "/runs/{run}/stop", "/?token={token}&x", "/\u00e9",
)  # fmt: skip
METHODS = ("HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "post", "POST/", "G\tET", "\x00")
ACTIONS = (
    {"Origin": None}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
    {"Content-Length": "1025"}, {"Content-Length": "99999999999999999999"}, {"Content-Length": "-1"},
    {"Content-Length": "1e2"}, {"Transfer-Encoding": "chunked"}, {"X": "\x01"}, {"X Y": "1"}, {"Host ": "127.0.0.1"},
    {"X": "a" * 9000}, {f"X{i}": "1" for i in range(70)}, {"X": "caf\u00e9"}, {"": "1"},
)  # fmt: skip
RAW = (
    b"\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/0.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01",
    b"GET / HTTP/1.1\nHost: 127.0.0.1\n\n", b"A" * 20000, b"GET  / HTTP/1.1\r\n\r\n", b"\x00" * 100 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\n folded: 1\r\n\r\n", b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n :{port}\r\n\r\n", b"GET / HTTP/2.0\r\nHost: 127.0.0.1:{port}\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: 127.0.0.1:{port}\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 5\r\n\r\nabcd",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: upgrade\r\nUpgrade: websocket\r\nX: \x7f\r\n\r\n",
)  # fmt: skip


def cases() -> list:
    made = [("GET", "/events", {"Host": host}) for host in HOSTS]
    made += [("POST", "/runs/{run}/stop", {"Host": host}) for host in HOSTS]
    made += [("GET", "/", {"Host": host}) for host in HOSTS]  # what needs no token needs a name of ours all the same
    made += [("GET", "/events", {"Origin": origin}) for origin in ORIGINS]
    made += [("GET", "/watch.js", {"Origin": origin}) for origin in ORIGINS]
    made += [("POST", "/runs/{run}/stop", {"Origin": origin}) for origin in ORIGINS]
    made += [("GET", path, {"X-Ludus-Token": token}) for token in TOKENS for path in ("/events", "/runs/{run}/video")]
    made += [("POST", "/runs/{run}/stop", {"X-Ludus-Token": token}) for token in TOKENS]
    made += [("POST", "/runs/{run}/questions/0/first", {"Origin": origin}) for origin in ORIGINS]
    made += [("POST", "/runs/{run}/questions/0/first", {"X-Ludus-Token": token}) for token in TOKENS]
    made += [("POST", "/runs/{run}/questions/0/first", changes) for changes in ACTIONS]
    made += [
        ("POST", f"/runs/{{run}}/questions/{path}", {}) for path in ("0/third", "2/first", "-1/first", "0/picture", "0")
    ]
    made += [("POST", "/runs/{linked}/questions/0/first", {})]
    made += [("GET", path, {}) for path in PATHS]
    made += [("POST", path, {}) for path in ("/", "/events", "/runs/x/stop", "/runs/../stop", "/plotly.js")]
    made += [(method, "/runs/{run}/stop", {}) for method in METHODS]
    made += [(method, path, {}) for method in ("HEAD", "OPTIONS", "PUT") for path in ("/", "/events")]
    made += [("POST", "/runs/{run}/stop", changes) for changes in ACTIONS]
    made += [("GET", f"/{name}?token={{token}}", {"X-Ludus-Token": None}) for name in ("", "events", "watch.js")]
    made += [("GET", "/events", {"X-Ludus-Token": None, "Authorization": "Bearer {token}"})]
    made += [("GET", "/events", {"X-Ludus-Token": None, "Cookie": "X-Ludus-Token={token}; ludus-watch-{port}={token}"})]
    made += [("GET", "/events", {"Sec-Fetch-Site": site}) for site in ("cross-site", "same-site")]
    made += [("GET", "/watch.js", {"Sec-Fetch-Site": site}) for site in ("cross-site", "same-site")]
    made += [("POST", "/runs/{run}/stop?token={token}", {"X-Ludus-Token": None})]
    return [pytest.param(*case, id=re.sub(r"[^ -~]", "?", f"{i} {case[0]} {case[1]}")) for i, case in enumerate(made)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of runs that tries to lead out of itself."""
    root = tmp_path_factory.mktemp("watch")
    (root / "secret.txt").write_bytes(SECRET)
    runs = root / "runs"
    make_run(runs / "one", learning_rows(20))
    linked = make_run(runs / "linked", learning_rows(20))
    (linked / "videos").mkdir()
    (linked / "videos" / "film.mp4").symlink_to(root / "secret.txt")
    write_questions(runs / "one", 2)
    (linked / "reward").mkdir()
    (linked / "reward" / "segments").symlink_to(runs / "one" / "reward" / "segments")
    (linked / "log.txt").symlink_to(root / "secret.txt")
    outside = make_run(root / "outside", learning_rows(20))
    (runs / "out").symlink_to(outside)
    return runs


@pytest.fixture(scope="module")
def served(place):
    with serving(place) as found:
        yield found


@pytest.fixture
def stopped(monkeypatch):
    """Every process that somebody was allowed to stop."""
    asked = []
    monkeypatch.setattr(process, "find_training_process", lambda journal, locks: process.TrainingProcess(1, 1))
    monkeypatch.setattr(process, "request_stop", lambda journal, found: asked.append(journal))
    return asked


def key(served: Serving, name: str) -> str:
    return next(key for key, run in served.server.page.index.runs.items() if run.name == name)


def connections(served: Serving) -> list[connection.Connection]:
    return list(served.server._uvicorn.server_state.connections)


def filled(served: Serving, text: str | None) -> str | None:
    token = served.access.token
    known = {"port": served.port, "token": token, "half": token[:20], "swapped": token.swapcase()}
    known |= {"digits": "9" * 5000, "run": key(served, "one"), "linked": key(served, "linked")}
    return text and re.sub(r"{(\w+)}", lambda found: str(known[found[1]]), text)


@pytest.mark.parametrize(("method", "target", "changes"), cases())
def test_a_hostile_request_gets_nothing(method, target, changes, served, stopped):
    made = {name: filled(served, value) for name, value in changes.items()}
    answer = served.ask(served.head(method, filled(served, target) or "", **made), seconds=2.0)
    assert answer.status in (400, 403, 404, 405, 413, 421, 431), answer.head
    told = answer.head.lower().encode() + answer.head.encode() + answer.body
    assert not [secret for secret in (SECRET, served.access.token.encode(), b'"id"', b"set-cookie") if secret in told]
    assert "content-security-policy: default-src 'none'" in answer.head.lower()
    assert "nosniff" in answer.head
    assert stopped == []
    assert not list(served.server.page.index.folder.glob("*/reward/preferences.jsonl"))


@pytest.mark.parametrize("raw", RAW, ids=range(len(RAW)))
def test_bytes_that_are_no_request_get_nothing(raw, served, monkeypatch):
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.3)
    answer = served.ask(raw.replace(b"{port}", str(served.port).encode()), seconds=2.0)
    assert answer.status in (400, 405, 408, 421, 431)
    assert "content-security-policy: default-src 'none'" in answer.head.lower()
    assert "connection: close" in answer.head.lower()


@pytest.mark.parametrize("piece", [b"a:\r\n" * 8000, b"a" * 32_000])
def test_a_head_without_end_is_not_read_to_its_end(piece, served, monkeypatch):
    parsed = []
    pass_on = H11Protocol.data_received
    monkeypatch.setattr(H11Protocol, "data_received", lambda self, data: (parsed.append(data), pass_on(self, data))[1])
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as stranger, pytest.raises(ConnectionError):
        stranger.sendall(b"GET / HTTP/1.1\r\n")
        for _ in range(1000):
            stranger.sendall(piece)
    assert len(b"".join(parsed)) < 2 * connection.MAX_HEAD_BYTES
    assert b"".join(parsed).count(b"\n") <= connection.MAX_LINES


def test_there_are_more_than_250_of_them():
    assert len(cases()) > 250


def test_the_same_requests_unchanged_are_answered(served, stopped):
    assert b'"name":"one"' in served.ask(served.head("GET", "/events"), most=1500, seconds=3).body
    assert stopped == []
    assert served.ask(served.head("POST", f"/runs/{key(served, 'one')}/stop")).status == 200
    assert [journal.parent.name for journal in stopped] == ["one"]
    answers = served.server.page.index.folder / "one" / "reward" / "preferences.jsonl"
    assert served.ask(served.head("POST", f"/runs/{key(served, 'one')}/questions/0/first")).status == 200
    assert answers.read_bytes() == b'{"first": 0, "second": 1, "prefer": "first"}\n'
    answers.unlink()


def test_a_run_behind_a_link_that_leads_out_is_not_there(served):
    assert {run.name for run in served.server.page.index.runs.values()} == {"one", "linked"}


def test_a_link_in_a_run_is_not_followed(served):
    chosen = key(served, "linked")
    told = served.ask(served.head("GET", f"/events?run={chosen}"), most=60_000, seconds=2).body
    assert b"panel-returns" in told
    assert SECRET not in told


def test_a_request_that_comes_drop_by_drop_is_not_waited_for(served, monkeypatch):
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.5)
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as stranger:
        for _ in range(100):
            try:
                stranger.sendall(b"G")
            except OSError:
                break
            time.sleep(0.05)
            if time.monotonic() - started > 1.0:
                break
        assert b" 408 " in stranger.recv(100)
    assert time.monotonic() - started < 3


def test_what_anybody_gets_is_the_same_for_all_and_names_no_run(served):
    for target in assets.ASSETS:
        given = [served.ask(served.head("GET", target, X_Ludus_Token=token)) for token in (None, served.access.token)]
        assert [answer.status for answer in given] == [200, 200]
        assert given[0] == given[1]
        assert "set-cookie" not in given[0].head.lower()
        assert not [secret for secret in (served.access.token.encode(), b"linked") if secret in given[0].body[:50_000]]


@pytest.mark.parametrize("cookies", [
    'theme={"mode":"dark"}', "caf\u00e9=\u00fc", "a=" + "b" * 4000 + "; c=" + "d" * 60_000, ";;;=;", "\x01=\x7f",
    "one=1\r\nCookie: two=2",
])  # fmt: skip
def test_cookies_of_other_servers_break_nothing(cookies, served):
    for method, target in (("GET", "/"), ("GET", "/watch.js")):
        assert served.ask(served.head(method, target, Cookie=cookies)).status == 200
    assert b'"name":"one"' in served.ask(served.head("GET", "/events", Cookie=cookies), most=1500, seconds=3).body


def test_strangers_who_hold_connections_shut_nobody_out(served):
    with contextlib.ExitStack() as held:
        slow = served.head("GET", "/plotly.js", X_Ludus_Token=None)
        for i in range(3 * connection.MAX_STRANGERS):  # some say nothing, some never take what they asked for
            stranger = held.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            stranger.sendall(slow if i % 2 else b"")
        assert served.ask(served.head()).status == 200
        assert b'"name":"one"' in served.ask(served.head("GET", "/events"), most=1500, seconds=3).body
        until = time.monotonic() + 5
        while len(connections(served)) > connection.MAX_STRANGERS and time.monotonic() < until:
            time.sleep(0.05)
        assert 0 < len(connections(served)) <= connection.MAX_STRANGERS  # the others were let go


def test_a_connection_serves_one_request(served):
    once = served.head("GET", "/page.js")
    answer = served.ask(once + once)
    assert answer.status == 200
    assert answer.body.count(b"HTTP/1.1") == 0


def test_a_websocket_is_not_opened(served):
    wish = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    answer = served.ask(served.head("GET", "/page.js", **wish, Sec_WebSocket_Key="AAAAAAAAAAAAAAAAAAAAAA=="))
    assert answer.status == 200
    assert answer.body == assets.asset("/page.js").content


def test_many_cookies_may_come_in_parts(served):
    head = served.head("GET", "/page.js", Cookie="a=" + "b" * 60_000)
    with socket.create_connection(("127.0.0.1", served.port), timeout=5) as browser:
        for part in (head[:40_000], head[40_000:]):
            browser.sendall(part)
            time.sleep(0.2)
        assert b" 200 " in browser.recv(100)


def test_whoever_does_not_take_an_answer_is_let_go(served, monkeypatch):
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", served.port)) as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.sendall(served.head("GET", "/plotly.js"))
        until = time.monotonic() + 5
        while not connections(served) and time.monotonic() < until:
            time.sleep(0.01)
        (held,) = connections(served)
        assert held.transport.get_write_buffer_limits() == (0, 0)  # the last bytes of an answer count, too
        while connections(served) and time.monotonic() < until:
            time.sleep(0.01)
        assert connections(served) == []


def test_an_error_of_ours_is_an_answer_without_a_word(served, monkeypatch, caplog):
    monkeypatch.setitem(assets.ASSETS, "/page.js", (lambda: str(1 / 0), "text/javascript"))
    assets.asset.cache_clear()
    answer = served.ask(served.head("GET", "/page.js"))
    assert answer.status == 500
    assert "content-security-policy: default-src 'none'" in answer.head.lower()
    assert b"division" not in answer.body
    assert "division by zero" in caplog.text  # it is told where the server runs
    assert served.ask(served.head("GET", "/watch.js")).status == 200


def test_a_page_that_is_open_is_not_closed_for_strangers(served, monkeypatch):
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.2)
    with contextlib.ExitStack() as held:
        page = held.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=5))
        page.sendall(served.head("GET", "/events"))
        assert page.recv(100)
        for _ in range(2 * connection.MAX_STRANGERS):
            held.enter_context(socket.create_connection(("127.0.0.1", served.port)))
        time.sleep(0.3)
        page.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            while True:
                assert page.recv(1 << 16) != b""


def test_there_are_only_so_many_pages(served, monkeypatch):
    monkeypatch.setattr(app, "MAX_STREAMS", 0)
    assert served.ask(served.head("GET", "/events")).status == 503


def request(name: str, value: str) -> Request:
    return Request({"type": "http", "method": "GET", "path": "/", "headers": [(name.encode(), value.encode())]})


def test_tokens_are_long_fresh_and_compared_in_constant_time(monkeypatch):
    one, other = auth.Access("127.0.0.1", 1), auth.Access("127.0.0.1", 1)
    assert one.token != other.token
    assert len(one.token) >= 43
    assert one.token not in repr(one)
    compared = []
    monkeypatch.setattr(auth.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or False)
    assert not one.has_token(request(auth.TOKEN_HEADER, one.token))
    assert compared == [(one.token.encode(), one.token.encode())]


@pytest.mark.parametrize(("host", "name", "passes"), [
    ("0.0.0.0", "192.168.0.7:80", True), ("0.0.0.0", "[fe80::1]:80", True), ("0.0.0.0", "evil.example:80", False),
    ("10.0.0.5", "10.0.0.5:80", True), ("10.0.0.5", "10.0.0.6:80", False), ("127.0.0.1", "192.168.0.7:80", False),
])  # fmt: skip
def test_a_server_for_other_machines_still_knows_its_names(host, name, passes):
    made = auth.Access(host, 80)
    if passes:
        made.check(request("host", name))
    else:
        with pytest.raises(HTTPException):
            made.check(request("host", name))


def test_the_newest_video_is_sent(tmp_path):
    run = make_run(tmp_path / "runs" / "one", learning_rows(5))
    (run / "videos").mkdir()
    for i, name in enumerate(("old.mp4", "new.mp4", "notes.txt", ".partial.mp4")):
        (run / "videos" / name).write_bytes(bytes([i]) * 1000)
        os.utime(run / "videos" / name, (i, i))
    with serving(tmp_path / "runs") as served:
        whole = served.ask(served.head("GET", f"/runs/{key(served, 'one')}/video"))
        assert (whole.status, whole.body) == (200, b"\x01" * 1000)


def test_every_case_is_another_one():
    made = [case.values for case in cases()]
    assert not [pair for pair in itertools.combinations(made, 2) if pair[0] == pair[1]]
