"""Event files: checksums against their definition, messages against TensorBoard's own descriptions."""

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS

from ludus.runs.trackers import event_file
from ludus.runs.trackers.tensorboard import settings_of


def bit_by_bit(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def test_the_checksum_is_castagnolis():
    assert checksums(b"123456789") == [0xE3069283]
    assert checksums(bytes(32)) == [0x8A9136AA]  # RFC 3720, B.4
    rng = np.random.default_rng(0)
    for length in (0, 1, 2, 3, 4, 5, 511, 512, 513, 514, 515, 516, 1024, 1500):
        data = [rng.bytes(length) for _ in range(3)]
        assert checksums(*data) == list(map(bit_by_bit, data)), length


def checksums(*messages: bytes) -> list[int]:
    data = np.frombuffer(b"".join(messages), np.uint8).reshape(len(messages), len(messages[0]))
    return event_file.crc32c(data).tolist()


def test_records_keep_their_order_however_long_they_are(tmp_path):
    rng = np.random.default_rng(0)
    steps = [int(2 ** rng.integers(40)) for _ in range(3000)]
    events = [event_file.event(1.0, step, [event_file.scalar("x" * (step % 7 + 1), 1.0)]) for step in steps]
    assert [event.step for event in read_back(tmp_path / "events", event_file.framed(events))] == steps


def read_back(path, *records: bytes) -> list[Event]:
    path.write_bytes(b"".join(records))
    return [Event.FromString(data) for data in RawEventFileLoader(str(path)).Load()]


def test_a_row_is_one_event_with_all_its_numbers(tmp_path):
    values = [event_file.scalar("train/loss", -0.125), event_file.scalar("länge", 3), event_file.scalar("big", 1e300)]
    (event,) = read_back(tmp_path / "events", event_file.framed([event_file.event(1234.5, 2**40, values)]))
    assert (event.wall_time, event.step) == (1234.5, 2**40)
    assert [(value.tag, value.simple_value) for value in event.summary.value] == [
        ("train/loss", -0.125), ("länge", 3.0), ("big", np.inf)
    ]  # fmt: skip


def test_a_file_says_its_version_and_that_all_steps_before_it_are_taken_back(tmp_path):
    version, start = read_back(tmp_path / "events", event_file.opening(5.0))
    assert version.file_version == "brain.Event:2"
    assert (start.session_log.status, start.step) == (SessionLog.START, 0)


def test_histograms_texts_and_pictures(tmp_path):
    picture = b"GIF89a" + bytes([4, 1, 3, 0]) + bytes(20)
    values = [
        event_file.histogram("h", -1.0, 1.0, [1, 0, 3, 0]),
        event_file.markdown("config", "# Grüße"),
        event_file.gif("video", picture),
    ]
    (event,) = read_back(tmp_path / "events", event_file.framed([event_file.event(0.0, 0, values)]))
    histogram, text, image = event.summary.value
    assert histogram.histo.bucket == [1, 0, 3, 0] and histogram.histo.bucket_limit == [-0.5, 0, 0.5, 1]
    assert (histogram.histo.min, histogram.histo.max, histogram.histo.num) == (-1, 1, 4)
    assert (histogram.histo.sum, histogram.histo.sum_squares) == pytest.approx((0.0, 0.75))
    assert text.tensor.string_val == ["# Grüße".encode()] and text.metadata.plugin_data.plugin_name == "text"
    assert (image.image.width, image.image.height, image.image.encoded_image_string) == (260, 3, picture)


def test_the_hyperparameter_dashboard_understands_sessions(tmp_path):
    settings = {"algorithm.gamma": 0.5, "verbose": True, "env": "CartPole-v1", "seed": 7}
    values = [event_file.session_start(settings, "first", 12.5), event_file.session_end(99.0)]
    (event,) = read_back(tmp_path / "events", event_file.framed([event_file.event(0.0, 0, values)]))
    start, end = event.summary.value
    assert (start.tag, end.tag) == (hparams.SESSION_START_INFO_TAG, hparams.SESSION_END_INFO_TAG)
    assert start.tensor == end.tensor == hparams.NULL_TENSOR
    begun = hparams.parse_session_start_info_plugin_data(start.metadata.plugin_data.content)
    assert {name: MessageToDict(value) for name, value in begun.hparams.items()} == settings
    assert (begun.group_name, begun.start_time_secs) == ("first", 12.5)
    ended = hparams.parse_session_end_info_plugin_data(end.metadata.plugin_data.content)
    assert (ended.status, ended.end_time_secs) == (STATUS_SUCCESS, 99.0)


def test_settings_are_flattened():
    nested = {
        "env": "x",
        "sizes": [1, 2],
        "none": None,
        "env_options": {},
        "algorithm": {"gamma": 0.5, "network": {"name": "mlp"}},
    }
    assert settings_of(nested) == {
        "env": "x", "sizes": "[1, 2]", "algorithm.gamma": 0.5, "algorithm.network.name": "mlp"
    }  # fmt: skip


def test_a_file_ends_with_the_place_of_the_journal_up_to_which_it_holds_all(tmp_path):
    path, place = tmp_path / "events", (2**40, 7, 0xFFFFFFFF, 64)
    whole = event_file.opening(0.0) + event_file.place(*place)
    path.write_bytes(whole)
    assert event_file.last_place(path) == place
    (*_, event) = read_back(path, whole)
    assert not event.WhichOneof("what"), "TensorBoard skips it"
    path.write_bytes(whole + event_file.framed([event_file.event(0.0, 0, [event_file.scalar("x", 1.0)])]))
    assert event_file.last_place(path) is None
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert event_file.last_place(path) is None
    for position in range(len(whole) - len(event_file.place(*place)), len(whole)):
        broken = bytearray(whole)
        broken[position] ^= 1
        path.write_bytes(broken)
        assert event_file.last_place(path) is None, position
