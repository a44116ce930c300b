"""Access control: every request is checked here before any route sees it.

A page of another site can neither read nor change anything, for three reasons, each of which would be enough: it does
not know the token, its requests carry its own `Origin`, and a name that it makes point at this machine (DNS rebinding)
is not a `Host` of this server.

The token comes in a header that the page's own script sets, never in a cookie: cookies do not know of ports, so that a
browser would send it to every other server on this machine. Cookies of those servers arrive here too and are not read.
"""

import hmac
import ipaddress
import re
import secrets
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException
from starlette.requests import Request

MAX_PLAIN_HEAD_BYTES, MAX_BODY_BYTES, MAX_HEADERS = 8192, 1024, 64
"""The first is of a head without its cookies."""
TOKEN_HEADER = "x-ludus-token"
SINGLE_HEADERS = ("host", "origin", "content-length", TOKEN_HEADER)
"""A request has each of these at most once."""
QUERY_NAMES = {"run", "v"}
PATH = re.compile(rb"/(?!/)[\w./-]*")
HEADER_VALUE = re.compile(rb"[ -~]*")
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "media-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Scripts are the server's own files alone; Plotly writes style attributes."""
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Connection": "close",
}
"""Headers of every answer. A connection serves one request, so that its limits are those of a request."""


def check_form(request: Request) -> None:
    """Raise HTTPException for a request whose form no browser gives it, or that is too large."""
    headers = [(name, value) for name, value in request.headers.raw if name != b"cookie"]
    if len(headers) > MAX_HEADERS:
        raise HTTPException(431, "there are too many headers")
    target = request.scope["raw_path"] + request.scope["query_string"]
    if len(target) + sum(len(name) + len(value) for name, value in headers) > MAX_PLAIN_HEAD_BYTES:
        raise HTTPException(431, "the headers are too large")
    if request.scope["http_version"] not in ("1.0", "1.1") or not PATH.fullmatch(request.scope["raw_path"]):
        raise HTTPException(400, "the target must be a path, and the protocol HTTP/1.1")
    if not all(HEADER_VALUE.fullmatch(value) for _, value in headers):
        raise HTTPException(400, "headers must be ASCII")
    if any(len(request.headers.getlist(name)) > 1 for name in SINGLE_HEADERS):
        raise HTTPException(400, "a header is there twice")
    if "transfer-encoding" in request.headers:
        raise HTTPException(400, "a body must have its length")
    if int(request.headers.get("content-length", "0")) > MAX_BODY_BYTES:
        raise HTTPException(413, "the body is too large")
    names = [name for name, _ in request.query_params.multi_items()]
    if len(set(names)) < len(names) or not QUERY_NAMES.issuperset(names):
        raise HTTPException(400, "the query cannot be read")


@dataclass(frozen=True)
class Access:
    """The address of one server, its token, and what it asks of every request."""

    host: str
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    """The secret of a live page: a browser that sends it may look, may ask a run to stop, and may answer what
    a run asks."""

    @property
    def address(self) -> str:
        """The address of the page with the token behind the #, which a browser gives to the page's script alone."""
        shown = "127.0.0.1" if _is_wildcard(self.host) else self.host
        return f"http://{_bracketed(shown)}:{self.port}/#token={self.token}"

    def check(self, request: Request) -> None:
        """Raise HTTPException for a request that no page of this server makes, with or without the token."""
        if not self._is_own_name(request.headers.get("host", "")):
            raise HTTPException(421, "this name is not mine")
        origin = request.headers.get("origin")
        if origin is not None and not (origin.startswith("http://") and self._is_own_name(origin[len("http://") :])):
            raise HTTPException(403, "another site may not ask")
        site = request.headers.get("sec-fetch-site", "same-origin")
        if request.scope["path"] != "/" and site not in ("same-origin", "none"):
            raise HTTPException(403, "another site may not ask")
        if request.method not in ("GET", "POST"):
            raise HTTPException(405, "there is GET and POST")
        if request.method == "POST" and origin is None:
            raise HTTPException(403, "only the page itself may ask for that")

    def has_token(self, request: Request) -> bool:
        """Return whether a request has the token; the comparison takes as long wherever the two differ."""
        return hmac.compare_digest(request.headers.get(TOKEN_HEADER, "").encode(), self.token.encode())

    def _is_own_name(self, name: str) -> bool:
        """Return whether host and port are this server's; one that listens everywhere has every numeric address."""
        host, colon, port = name.rpartition(":")
        if not colon or port != str(self.port):
            return False
        if host.lower() in ("127.0.0.1", "localhost", "[::1]", _bracketed(self.host).lower()):
            return True
        return _is_wildcard(self.host) and _is_address(host.removeprefix("[").removesuffix("]"))


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine alone."""
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
