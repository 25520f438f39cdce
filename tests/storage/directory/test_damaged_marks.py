"""Small files in any state after a power loss do not keep a log closed."""

from __future__ import annotations

import pytest

import eoslog
from tests.rows.tools import values


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 23, b"t 0\nt", b"t x\n", b"\xff\xfe 1\n", b"t 0\n"]
)
def test_a_poison_file_with_any_content_is_accepted(tmp_path, content):
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.produce("t", "v")
    (path / ".kafka_cleanshutdown").unlink()
    (path / "eoslog.poison").write_bytes(content)
    with eoslog.open(path) as log:
        assert values(log) == [b"v"]
    assert not (path / "eoslog.poison").exists()


@pytest.mark.parametrize("topic", ["__cluster_metadata", "t"])
@pytest.mark.parametrize("content", [None, b"version: 0\ntopic_id: BBBBBBBBBBBBBBBBBBBBBA\n"])
def test_a_directory_with_the_topic_id_of_another_topic_is_rejected(tmp_path, topic, content):
    """Also that of the metadata log itself, whose topics are not read by then."""
    path = tmp_path / "log"
    with eoslog.open(path) as log:
        log.create_topic("t")
        log._engine.partition("t", 0)
    mark = path / f"{topic}-0" / "partition.metadata"
    mark.unlink() if content is None else mark.write_bytes(content)
    with pytest.raises(eoslog.errors.StorageError, match=f"topic id .*{topic}-0"):  # noqa: SIM117
        with eoslog.open(path) as log:
            log._engine.partition("t", 0)
