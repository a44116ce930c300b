"""Who may ask what: everything about a request is looked at here before anything is done for it.

A page of another site cannot read or change anything, for each of several reasons: it does not know the token, its
requests carry its own `Origin`, and a name that it lets point at this machine (DNS rebinding) is not a `Host` of ours.

The token comes in a header that the page's own script sets, never in a cookie: cookies do not know of ports, so that a
browser would hand it to every other server on this machine. Cookies of those servers come here too; nobody reads them.
"""

import hmac
import ipaddress
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

HEAD_BYTES, BODY_BYTES, MOST_HEADERS = 8192, 1024, 64
WHOLE_HEAD_BYTES = 1 << 18
"""A head with its cookies, which other servers of this machine may have set in numbers."""
TOKEN_HEADER = "x-ludus-token"
SINGLE = ("host", "origin", "content-length", TOKEN_HEADER)
"""Headers of which a request has one at most."""
KNOWN = {"run", "v"}
"""What a query may name."""
COOKIE = re.compile(rb"\r\ncookie:[^\r\n]*", re.IGNORECASE)
NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
TARGET = re.compile(r"/[!-~]*")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "media-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Plotly writes style attributes; scripts are files of ours alone."""
SAFETY = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every answer."""


class Refused(Exception):  # noqa: N818  an answer, not a fault
    """A request that gets nothing but a status."""

    def __init__(self, status: int, reason: str):
        """Say why, in a few words that repeat nothing of the request."""
        super().__init__(reason)
        self.status = status


class Request(NamedTuple):
    """A request whose form is sound."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]

    @property
    def length(self) -> int:
        """Bytes of its body."""
        return int(self.headers.get("content-length", "0"))


def parse(head: bytes) -> Request:
    """Read the head of a request, strictly: what could be read in two ways is refused. Its cookies are not read."""
    head = COOKIE.sub(b"", head)
    if len(head) > HEAD_BYTES:
        raise Refused(431, "the headers are too large")
    try:
        first, *lines = head.decode("ascii").removesuffix("\r\n\r\n").split("\r\n")
    except UnicodeDecodeError as error:
        raise Refused(400, "headers must be ASCII") from error
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0") or not NAME.fullmatch(words[0]):
        raise Refused(400, "this is no HTTP request")
    if not TARGET.fullmatch(words[1]) or words[1].startswith("//"):
        raise Refused(400, "the target must be a path")
    headers = _headers(lines)
    if "transfer-encoding" in headers or not headers.get("content-length", "0").isdecimal():
        raise Refused(400, "a body must have its length")
    if len(headers.get("content-length", "0")) > 6 or int(headers.get("content-length", "0")) > BODY_BYTES:
        raise Refused(413, "the body is too large")
    parts = urlsplit(words[1])
    try:
        query = parse_qsl(parts.query, True, bool(parts.query), max_num_fields=len(KNOWN))
    except ValueError as error:
        raise Refused(400, "the query cannot be read") from error
    if len(dict(query)) < len(query) or not KNOWN.issuperset(dict(query)):
        raise Refused(400, "the query cannot be read")
    return Request(words[0], parts.path, dict(query), headers)


def _headers(lines: list[str]) -> dict[str, str]:
    if len(lines) > MOST_HEADERS:
        raise Refused(431, "there are too many headers")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not NAME.fullmatch(name) or not value.isprintable():
            raise Refused(400, "a header cannot be read")
        if name in headers and name in SINGLE:
            raise Refused(400, "a header is there twice")
        headers[name] = value.strip()
    return headers


@dataclass(frozen=True)
class Gate:
    """The checks of one server."""

    host: str
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """Whoever has it may look, and may ask a run to stop."""

    @property
    def address(self) -> str:
        """Where the page is, token and all; a browser keeps what is behind the # to itself and the page's script."""
        shown = "127.0.0.1" if _is_wildcard(self.host) else self.host
        return f"http://{_bracketed(shown)}:{self.port}/#token={self.token}"

    def check(self, request: Request) -> None:
        """Raise Refused for a request that no page of ours makes, whoever asks."""
        if not self._is_ours(request.headers.get("host", "")):
            raise Refused(421, "this name is not mine")
        origin = request.headers.get("origin")
        if origin is not None and not (origin.startswith("http://") and self._is_ours(origin[len("http://") :])):
            raise Refused(403, "another site may not ask")
        if request.path != "/" and request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Refused(403, "another site may not ask")
        if request.method not in ("GET", "POST"):
            raise Refused(405, "there is GET and POST")
        if request.method == "POST" and origin is None:
            raise Refused(403, "only the page itself may ask for that")

    def knows(self, request: Request) -> bool:
        """Tell whether a request has the token, compared in a time that tells nothing of where it differs."""
        return hmac.compare_digest(request.headers.get(TOKEN_HEADER, "").encode(), self.token.encode())

    def _is_ours(self, name: str) -> bool:
        """Tell whether host and port are ours; of a server that listens everywhere, any address without a name is."""
        host, colon, port = name.rpartition(":")
        if not colon or port != str(self.port):
            return False
        if host.lower() in ("127.0.0.1", "localhost", "[::1]", _bracketed(self.host).lower()):
            return True
        return _is_wildcard(self.host) and _is_address(host.removeprefix("[").removesuffix("]"))


def is_loopback(host: str) -> bool:
    """Tell whether an address can be reached from this machine alone."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_wildcard(host: str) -> bool:
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
