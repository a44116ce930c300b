"""Paths over Google Drive, which has none: which ids have which names in which folders.

A list of a folder is asked for once and then kept; what was created here is known whatever a list says, for lists are
late. Of several files of one name the oldest comes first.
"""

import threading
from collections.abc import Callable
from typing import Any

from ludus.runs.storage.base import MissingError

FOLDER_TYPE = "application/vnd.google-apps.folder"

File = dict[str, Any]
"""A file or folder as Drive describes it: `id`, `name`, `mimeType` and, of a file, its hashes."""


class DriveTree:
    """A folder of Drive and all below it, as far as they are known; any number of threads may use it."""

    def __init__(
        self,
        root: str,
        below: list[str],
        listed: Callable[[str], list[File]],
        made: Callable[[str, str], File],
    ):
        """Know nothing yet.

        Args:
            root: id of the folder that paths begin at, or `root`.
            below: names that lead from there to the place.
            listed: returns what is in a folder.
            made: creates a folder in another one.
        """
        self._root, self._below, self._listed, self._make = root, below, listed, made
        self._folders: dict[str, dict[str, list[File]]] = {}
        self._created: dict[str, tuple[str, File]] = {}
        """Files and folders that were created here, with the folder they are in, by id."""
        self._lock = threading.RLock()  # two threads shall not make the same folder

    def place(self, path: str, is_made: bool = False) -> tuple[str, str]:
        """Return the id of the folder that a path leads to, and the last name; folders are made if wanted."""
        *folders, name = [*self._below, *path.split("/")]
        with self._lock:
            id = self._root
            for folder in folders:
                found = self._named(id, folder, is_folder=True)
                if not found:
                    self.forget(id)  # it may have been made since
                    found = self._named(id, folder, is_folder=True)
                if not found and not is_made:
                    raise MissingError(f"{path}: is not there")
                id = found[0]["id"] if found else self._new_folder(id, folder)
            return id, name

    def files(self, folder: str, name: str) -> list[File]:
        """Return the files of a name."""
        return self._named(folder, name, is_folder=False)

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, those of folders with a `/` behind them."""
        id, _ = self.place(f"{path}/." if path else ".")
        files = [file for several in self._contents(id).values() for file in several]
        return sorted({file["name"] + "/" * (file["mimeType"] == FOLDER_TYPE) for file in files})

    def note(self, folder: str, file: File) -> None:
        """Take note that a file was put, and no other one has its name."""
        with self._lock:
            self._created[file["id"]] = folder, file
            folders = self._named(folder, file["name"], is_folder=True)
            self._contents(folder)[file["name"]] = [file, *folders]

    def drop(self, id: str) -> None:
        """Take note that a file is being removed."""
        with self._lock:
            self._created.pop(id, None)
            for names in self._folders.values():
                for name, files in names.items():
                    names[name] = [file for file in files if file["id"] != id]

    def forget(self, folder: str | None = None) -> None:
        """Ask for the list of a folder again, or of all."""
        with self._lock:
            for id in [folder] if folder is not None else list(self._folders):
                self._folders.pop(id, None)

    def _new_folder(self, parent: str, name: str) -> str:
        made = self._make(parent, name)
        self._created[made["id"]] = parent, made
        self._contents(parent).setdefault(name, []).append(made)
        self._folders[made["id"]] = {}
        return made["id"]

    def _named(self, folder: str, name: str, is_folder: bool) -> list[File]:
        return [x for x in self._contents(folder).get(name, []) if (x["mimeType"] == FOLDER_TYPE) == is_folder]

    def _contents(self, folder: str) -> dict[str, list[File]]:
        with self._lock:
            if folder not in self._folders:
                files = {file["id"]: file for file in self._listed(folder)}
                files |= {id: file for id, (parent, file) in self._created.items() if parent == folder}
                self._folders[folder] = names = {}
                for file in files.values():
                    names.setdefault(file["name"], []).append(file)
            return self._folders[folder]
