"""Keeping secrets out of what is shown or written: MLflow's messages repeat addresses, and those may hold passwords."""

import os
import re
from urllib.parse import quote

USERINFO = re.compile(r"(?<=://)[^/@\s]*@")
QUERY = re.compile(r"(://[^\s?'\")]*)\?[^\s'\")]*")
TELLING = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_KEY|USERNAME", re.IGNORECASE)
"""Names of environment variables whose values are nobody's business."""
SHORTEST = 4
"""A shorter value would be found inside ordinary words."""
MOST_CHARACTERS = 300
REASONS = {
    "Connection refused": "nobody listens there",
    "NameResolutionError": "no such host is known",
    "timed out": "it does not answer in time",
    "Remote end closed": "it ended the connection without an answer",
    r"too many (\d+) error responses": r"it answers with error \1",
    r"failed with error code (\d+)": r"it answers with error \1",
}
"""What a long message of the HTTP libraries comes to."""


def without_credentials(uri: str) -> str:
    """Return an address without the user, password and query that it may hold."""
    return QUERY.sub(r"\1", USERINFO.sub("", uri))


def redacted(text: str) -> str:
    """Return a message, on one line, without any secret of the environment."""
    line = " ".join(str(text).split())
    for name, value in os.environ.items():
        if TELLING.search(name) and len(value) >= SHORTEST:
            line = line.replace(value, "***").replace(quote(value, safe=""), "***")
    return without_credentials(line)[:MOST_CHARACTERS]


def reason(error: Exception) -> str:
    """Return why something failed, in few words, without any secret."""
    for pattern, words in REASONS.items():
        if match := re.search(pattern, str(error)):
            return match.expand(words)
    return redacted(str(error))
