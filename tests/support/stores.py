"""Real implementations of the places for copies, on loopback."""

import contextlib
import logging
from collections.abc import Generator
from pathlib import Path

import pytest

AMAZON = {"AWS_ACCESS_KEY_ID": "an-id", "AWS_SECRET_ACCESS_KEY": "a-s3cret-key", "AWS_DEFAULT_REGION": "us-east-1"}


@contextlib.contextmanager
def s3(monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """Run moto's S3 server; give a URL."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {**AMAZON, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket="bucket")
    client.close()
    yield "s3://bucket/runs"
    server.stop()


@contextlib.contextmanager
def gcs(monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """Run gcp-storage-emulator; give a URL."""
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
    server.start()
    server._api._httpd.handle_error = lambda *_: None  # a client that asks for a part of a file does not read the rest
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server._api._httpd.server_port}")
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    yield "gs://bucket/runs"
    server.stop()


@contextlib.contextmanager
def gdrive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[str]:
    """Run our own Google Drive; give a URL."""
    from drive_server import Drive

    drive = Drive()
    monkeypatch.setenv("LUDUS_GDRIVE_ENDPOINT", drive.uri)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(drive.token_file(tmp_path / "token.json")))
    yield "gdrive://Folder/runs"
    drive.close()
