"""The small text files have Kafka's bytes, and damage is a typed error."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eoslog.errors import CorruptRecord, UnsupportedFormat
from eoslog.storage.format import checkpoints as cp

TOPIC_ID = bytes(range(16))


def write(path, text):
    path.write_text(text)
    return str(path)


def test_offset_checkpoints_have_kafkas_lines_and_read_back(tmp_path):
    path = str(tmp_path / cp.RECOVERY_POINT_CHECKPOINT)
    offsets = {("b", 1): 7, ("a", 0): 0, ("a", 10): 2**62}
    cp.write_offsets(path, offsets)
    assert open(path).read() == f"0\n3\na 0 0\na 10 {2**62}\nb 1 7\n"
    assert cp.read_offsets(path) == offsets
    assert os.listdir(tmp_path) == [cp.RECOVERY_POINT_CHECKPOINT]  # no temporary file is left


def test_missing_and_empty_checkpoints_have_no_entries(tmp_path):
    assert cp.read_offsets(str(tmp_path / "no")) == {}
    assert cp.read_offsets(write(tmp_path / "empty", "")) == {}
    assert cp.read_leader_epochs(str(tmp_path / "no")) == []


@pytest.mark.parametrize(
    "text",
    ["1\n0\n", "0\n", "0\nx\n", "0\n2\na 0 1\n", "0\n1\na 0\n", "0\n1\na 0 b\n", "0\n1\na b c d\n"],
)
def test_a_damaged_offset_checkpoint_raises_or_counts_as_empty_if_lenient(tmp_path, text):
    path = write(tmp_path / "c", text)
    with pytest.raises(CorruptRecord) as caught:
        cp.read_offsets(path)
    assert path in str(caught.value)
    assert cp.read_offsets(path, lenient=True) == {}


def test_a_checkpoint_that_is_not_text_raises_corrupt_record(tmp_path):
    (tmp_path / "c").write_bytes(b"0\n\xff\xfe")
    with pytest.raises(CorruptRecord, match="not UTF-8"):
        cp.read_offsets(str(tmp_path / "c"))


def test_leader_epochs_must_increase_in_a_checkpoint(tmp_path):
    path = str(tmp_path / cp.LEADER_EPOCH_CHECKPOINT)
    cp.write_leader_epochs(path, [(0, 0), (3, 10), (4, 10)])
    assert open(path).read() == "0\n3\n0 0\n3 10\n4 10\n"
    assert cp.read_leader_epochs(path) == [(0, 0), (3, 10), (4, 10)]
    for bad in ("0\n2\n1 0\n1 5\n", "0\n2\n1 9\n2 5\n"):
        with pytest.raises(CorruptRecord, match="leader epoch"):
            cp.read_leader_epochs(write(tmp_path / "bad", bad))


def test_partition_metadata_has_kafkas_lines_and_reads_back(tmp_path):
    cp.write_partition_metadata(str(tmp_path), TOPIC_ID)
    text = (tmp_path / cp.PARTITION_METADATA).read_text()
    assert text == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"
    assert cp.read_partition_metadata(str(tmp_path)) == TOPIC_ID


@pytest.mark.parametrize(
    "text",
    ["", "version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n", "version: 0\n", "version: 0\ntopic_id: x\n",
     "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n", "version: 0\ntopic_id: AAECAwQF!gcICQoLDA0ODw\n"],
)  # fmt: skip
def test_damaged_partition_metadata_raises_corrupt_record(tmp_path, text):
    write(tmp_path / cp.PARTITION_METADATA, text)
    with pytest.raises(CorruptRecord, match=r"partition\.metadata"):
        cp.read_partition_metadata(str(tmp_path))


def test_missing_partition_metadata_reads_as_none(tmp_path):
    assert cp.read_partition_metadata(str(tmp_path)) is None


@given(st.binary(min_size=16, max_size=16))
def test_ids_have_22_characters_and_read_back(value):
    text = cp.id_text(value)
    assert len(text) == 22
    assert cp.id_bytes(text) == value


def test_new_ids_never_look_like_an_option(monkeypatch):
    drawn = iter([b"\xfb" + bytes(15), b"\x01" + bytes(15)])
    monkeypatch.setattr(cp.secrets, "token_bytes", lambda n: next(drawn))
    assert cp.new_id() == b"\x01" + bytes(15)


def test_meta_properties_read_back(tmp_path):
    made = cp.MetaProperties.new("os", txn=4, offsets=2)
    cp.write_meta_properties(str(tmp_path), made)
    assert cp.read_meta_properties(str(tmp_path)) == made
    assert (tmp_path / "meta.properties").read_text().startswith("version=1\n")
    assert len(made.cluster_id) == len(made.directory_id) == 22


def test_meta_properties_keep_foreign_keys_and_skip_comments(tmp_path):
    write(
        tmp_path / "meta.properties",
        "#\n! x\nversion=1\ncluster.id=c\nnode.id=3\ndirectory.id=d\neoslog.format=1\na.b = c\\:d\n"
        "eoslog.durability=strict\neoslog.transaction.partitions=50\neoslog.offsets.partitions=7\n",
    )
    found = cp.read_meta_properties(str(tmp_path))
    assert (found.node_id, found.durability, found.transaction_partitions) == (3, "strict", 50)
    assert found.offsets_partitions == 7
    assert found.extra == {"a.b": "c:d"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "version=1"),
        ("version=0\neoslog.format=1\n", "version=1"),
        ("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=d\n", "another program wrote it"),
        ("version=1\neoslog.format=1\n", "cluster_id"),
        ("version=1\ncluster.id=c\ndirectory.id=d\neoslog.format=x\n", "'x'"),
        ("version=1\ncluster.id=c\ndirectory.id=d\neoslog.format=0\n", "expected 1, found 0"),
        (
            "version=1\ncluster.id=c\ndirectory.id=d\neoslog.format=1\neoslog.durability=no\n",
            "strict or os",
        ),
        (
            "version=1\ncluster.id=c\ndirectory.id=d\neoslog.format=1\neoslog.durability=os\n"
            "eoslog.transaction.partitions=2\neoslog.mffsets.partitions=1\n",
            "has no eoslog.offsets.partitions",
        ),
        (
            "version=1\ncluster.id=c\ndirectory.id=d\neoslog.format=1\neoslog.durability=os\n"
            "eoslog.transaction.partitions=2\neoslog.offsets.partitions=0\n",
            "eoslog.offsets.partitions: expected '1 or more', found 0",
        ),
    ],
)
def test_foreign_and_damaged_meta_properties_are_rejected(tmp_path, text, match):
    path = write(tmp_path / "meta.properties", text)
    with pytest.raises(CorruptRecord, match=match) as caught:
        cp.read_meta_properties(str(tmp_path))
    assert path in str(caught.value)


def test_a_newer_format_is_reported_as_such_whatever_other_keys_are_set(tmp_path):
    path = write(tmp_path / "meta.properties", "version=1\neoslog.format=2\nlog.id=7\n")
    with pytest.raises(UnsupportedFormat, match="a newer eoslog.*expected 1, found 2") as caught:
        cp.read_meta_properties(str(tmp_path))
    assert path in str(caught.value)


def test_missing_meta_properties_read_as_none(tmp_path):
    assert cp.read_meta_properties(str(tmp_path)) is None


def test_a_clean_shutdown_is_recognised_by_the_existence_of_its_file(tmp_path):
    assert not cp.was_clean_shutdown(str(tmp_path))
    cp.write_clean_shutdown(str(tmp_path))
    assert (tmp_path / cp.CLEAN_SHUTDOWN).read_text() == '{"version":0,"brokerEpoch":-1}'
    (tmp_path / cp.CLEAN_SHUTDOWN).write_text("nonsense")
    assert cp.was_clean_shutdown(str(tmp_path))
