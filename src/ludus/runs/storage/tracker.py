"""Storage as a part of a run: a process beside training copies the run folder."""

from collections.abc import Callable

from ludus.runs.folder import RunFolder
from ludus.runs.storage import following, places
from ludus.runs.storage.options import StorageOptions
from ludus.runs.trackers.companion import Companion

MODULE = "ludus.runs.storage.following"


class StorageTracker:
    """Copies a run to its storage, beside training."""

    def __init__(self, options: StorageOptions, say: Callable[[str], None]):
        """Refuse a place that is unknown, or without library or credentials; nothing is sent."""
        assert options.url is not None
        places.opened(options.url, options.key_file)
        self.options, self.companion = options, Companion("storage", MODULE, "ludus push", say)

    def begin(self, folder: RunFolder) -> None:
        """Start the process."""
        self.companion.begin(folder, following.variables(self.options))

    def wake(self) -> None:
        """Hear what it has to say."""
        self.companion.wake()

    def end(self) -> None:
        """Wait for the rest, as long as there are signs of life."""
        self.companion.end()
