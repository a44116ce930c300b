"""Comparing what lies in a store with what was sent, by a hash of its content."""

import hashlib

from ludus.runs.storage.base import LocalFile, MissingError, RemoteStore


def is_same(store: RemoteStore, path: str, source: LocalFile) -> bool:
    """Tell whether a file that was put is what was sent.

    A hash that the place made of the bytes it holds is enough; a place that makes none, or another one (some encrypt
    before they hash), is read back.
    """
    try:
        told = store.told(path)
        if told.size != source.size:
            return False
        known = {name: digest for name, digest in told.digests.items() if name in source.digests}
        if known and all(source.digests[name] == digest for name, digest in known.items()):
            return True
        return "sha256" not in known and _sha256(store, path, source) == source.sha256
    except MissingError:
        return False


def _sha256(store: RemoteStore, path: str, source: LocalFile) -> str:
    digest, size = hashlib.sha256(), 0
    for piece in store.pieces(path, source.sha256):
        digest.update(piece)
        size += len(piece)
        if size > source.size:
            break
    return digest.hexdigest()
