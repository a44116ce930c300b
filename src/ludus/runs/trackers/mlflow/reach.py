"""Whether there is anybody at MLflow's address, found out without MLflow, whose import takes seconds."""

import os
import ssl
import urllib.error
import urllib.request
from urllib.parse import urlsplit

URI = "MLFLOW_TRACKING_URI"


def answers(seconds: float) -> bool:
    """Return whether the server answers within so many seconds, whatever it says; files always do."""
    address = urlsplit(os.environ.get(URI, ""))
    if address.scheme not in ("http", "https") or not address.hostname:
        return True
    host = f"[{address.hostname}]" if ":" in address.hostname else address.hostname
    place = f"{host}:{address.port}" if address.port else host  # without credentials
    try:
        urllib.request.urlopen(f"{address.scheme}://{place}/health", timeout=seconds).close()
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLError)  # it speaks, though not to strangers
    except (OSError, ValueError):
        return False
    return True
