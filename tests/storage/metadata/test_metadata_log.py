"""Topics and blocks of producer ids are folded from the metadata log alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eoslog._core import MAX_SLOTS, build_batch
from eoslog.errors import (
    ConfigError,
    CorruptRecord,
    InvalidPartitions,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from eoslog.storage.format.serde import Reader, Writer
from eoslog.storage.metadata import records
from eoslog.storage.metadata.image import internal_topics
from eoslog.storage.metadata.metadata_log import MAX_PARTITIONS, MetadataLog, check_topic_name
from tests.storage.memory_log import MemoryLog


@pytest.fixture
def log():
    return MemoryLog()


@pytest.fixture
def metadata(log):
    return MetadataLog(log)


def put(log, *values):
    """Append records as another writer would."""
    log.append(build_batch([(0, None, value, ()) for value in values]))


TOPIC_ID = bytes(range(16))
GOLDEN = [
    (
        records.TopicRecord("orders", TOPIC_ID),
        "010200076f7264657273" + TOPIC_ID.hex() + "00",
    ),
    (
        records.PartitionRecord(3, TOPIC_ID, 101),
        "01"
        "03"
        "01"
        "00000003" + TOPIC_ID.hex() + "02"
        "00000000"
        "02"
        "00000000"
        "01"
        "01"
        "00000000"
        "00000000"
        "00000000"
        "02" + "00" * 16 + "01"
        "904e"
        "04"
        "00000065",
    ),
    (records.PartitionRecord(0, TOPIC_ID, None), None),
    (
        records.ConfigRecord("t", "retention.ms", "5"),
        "0104000202740d726574656e74696f6e2e6d73023500",
    ),
    (
        records.ConfigRecord("t", "a", None),
        "01040002027402610000",
    ),
    (records.RemoveTopicRecord(TOPIC_ID), "010900" + TOPIC_ID.hex() + "00"),
    (
        records.ProducerIdsRecord(1000),
        "010f0000000000ffffffffffffffff00000000000003e800",
    ),
]


@pytest.mark.parametrize(("record", "expected"), GOLDEN)
def test_metadata_records_have_the_bytes_of_kraft_and_read_back(record, expected):
    data = record.encode()
    if expected is not None:
        assert data.hex() == expected
    assert records.decode(data) == record


def test_partition_records_of_other_kafka_versions_are_read():
    def body(version):
        out = Writer().uvarint(1).uvarint(3).uvarint(version).i32(2).uuid(TOPIC_ID)
        for replicas in ([1, 2], [1], [], []):
            out.compact_array(len(replicas))
            for replica in replicas:
                out.i32(replica)
        out.i32(1).i32(7).i32(9)
        if version >= 1:
            out.compact_array(2).uuid(TOPIC_ID).uuid(bytes(16))
        return out

    old = records.decode(body(0).tagged({0: b"\x01"}).take())
    new = records.decode(body(2).tagged({1: b"\x01", 2: b"\x01"}).take())
    for record in (old, new):
        assert (record.partition, record.leader_epoch, record.slot) == (2, 7, None)


def test_unknown_record_kinds_are_skipped_and_malformed_ones_rejected():
    feature = Writer().uvarint(1).uvarint(12).uvarint(0).compact_string("x").i16(1).tagged().take()
    assert records.decode(feature) is None
    for bad in (None, b"", b"\x02\x02\x00", b"\x01\x02\x00\x09ab"):
        with pytest.raises(CorruptRecord):
            records.decode(bad)


@given(st.binary(max_size=80))
def test_random_bytes_decode_to_a_record_or_raise_corrupt_record(data):
    try:
        records.decode(data)
    except CorruptRecord:
        pass


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "ä", "a\0", "x" * 250, "a\n", None, 7, b"a"]
)
def test_illegal_topic_names_are_rejected(metadata, log, name):
    with pytest.raises(InvalidTopic):
        metadata.create_topic(name)
    assert log.log_end == 0


def test_the_name_of_the_staging_directory_is_rejected_as_a_topic(metadata, log):
    with pytest.raises(InvalidTopic, match="'eoslog-staging' is reserved for staged writes"):
        metadata.create_topic("eoslog-staging")
    with pytest.raises(InvalidTopic):
        metadata.adopt_topic("eoslog-staging", TOPIC_ID, {0: 0})
    assert log.log_end == 0


@pytest.mark.parametrize("name", ["a", "x" * 249, "A.b_c-9", "...", "_", "eoslog-stage"])
def test_legal_topic_names_are_accepted(name):
    assert check_topic_name(name) == name


@pytest.mark.parametrize("count", [0, -1, MAX_PARTITIONS + 1, 1.5, True, "3", None])
def test_impossible_partition_counts_are_rejected(metadata, count):
    with pytest.raises(InvalidPartitions):
        metadata.create_topic("t", count)


def test_create_topic_writes_one_batch_that_is_durable_on_return(metadata, log):
    info = metadata.create_topic("orders", 3, {"retention.ms": 5, "cleanup_policy": "compact"})
    assert len(log.stored) == 1
    assert log.high_watermark == log.log_end == 6
    assert [p.slot for p in info.partitions.values()] == [101, 102, 103]
    assert info.config == {"cleanup.policy": "compact", "retention.ms": "5"}
    assert info.settings.retention_ms == 5
    assert len(info.topic_id) == 16
    log.lose_what_is_not_durable()
    assert MetadataLog(log).topic("orders") == info


@pytest.mark.slow
def test_a_batch_of_the_largest_topic_fits_in_one_mebibyte(metadata, log):
    info = metadata.create_topic("x" * 249, MAX_PARTITIONS)
    assert len(info.partitions) == MAX_PARTITIONS
    assert len(log.stored) == 1
    assert len(log.stored[0].data) <= 1_048_588


def test_create_topic_rejects_a_name_in_use(metadata):
    metadata.create_topic("t")
    with pytest.raises(TopicAlreadyExists, match="'t'"):
        metadata.create_topic("t")


def test_create_topic_rejects_a_name_until_its_deletion_is_complete(metadata):
    metadata.create_topic("t")
    gone = metadata.delete_topic("t").topic_id
    with pytest.raises(TopicAlreadyExists, match="'t' is being deleted"):
        metadata.create_topic("t", settled=())
    assert metadata.create_topic("t", settled={gone}).topic_id != gone


def test_internal_topics_have_fixed_slots_and_reject_changes(metadata):
    assert metadata.topic("__cluster_metadata").partition(0).slot == 0
    states = metadata.topic("__transaction_state").partitions
    offsets = metadata.topic("__consumer_offsets").partitions
    assert [states[0].slot, states[49].slot] == [1, 50]
    assert [offsets[0].slot, offsets[49].slot] == [51, 100]
    for call in (
        lambda: metadata.create_topic("__consumer_offsets"),
        lambda: metadata.delete_topic("__transaction_state"),
        lambda: metadata.alter_topic("__transaction_state", {}),
        lambda: metadata.create_partitions("__cluster_metadata", 2),
    ):
        with pytest.raises(InvalidTopic, match="internal"):
            call()
    assert MetadataLog(MemoryLog(), internal_topics(3, 2)).create_topic("t").partition(0).slot == 6


def test_slots_of_deleted_topics_are_never_reused(metadata):
    first = metadata.create_topic("t", 2)
    assert metadata.delete_topic("t").deleted
    with pytest.raises(UnknownTopicOrPartition):
        metadata.topic("t")
    second = metadata.create_topic("t", 1)
    assert second.topic_id != first.topic_id
    assert second.partition(0).slot == 103
    assert metadata.deleted[first.topic_id].partition(0).slot == 101


def test_create_topic_rejects_more_partitions_than_free_slots(metadata, log):
    put(
        log,
        records.TopicRecord("t", TOPIC_ID).encode(),
        records.PartitionRecord(0, TOPIC_ID, MAX_SLOTS - 4).encode(),
        records.RemoveTopicRecord(TOPIC_ID).encode(),
    )
    for grow in (
        lambda: metadata.create_topic("u", 4),
        lambda: metadata.adopt_topic("u", TOPIC_ID, dict.fromkeys(range(4), 1)),
    ):
        with pytest.raises(
            InvalidPartitions, match=f"{MAX_SLOTS} over its lifetime.*{MAX_SLOTS - 3}"
        ):
            grow()
    metadata.create_topic("u", 2)
    with pytest.raises(InvalidPartitions, match=str(MAX_SLOTS)):
        metadata.create_partitions("u", 4)
    assert metadata.create_partitions("u", 3).partition(2).slot == MAX_SLOTS - 1


def test_create_partitions_keeps_old_partitions_and_old_views(metadata):
    before = metadata.create_topic("t", 1)
    metadata.create_topic("u", 1)
    after = metadata.create_partitions("t", 3)
    assert [p.slot for p in after.partitions.values()] == [101, 103, 104]
    assert len(before.partitions) == 1
    for bad in (3, 2, 0):
        with pytest.raises(InvalidPartitions, match="must be 4 to"):
            metadata.create_partitions("t", bad)
    with pytest.raises(UnknownTopicOrPartition, match="partition 3 does not exist; use 0 to 2"):
        after.partition(3)


def test_alter_topic_sets_and_unsets_keys_and_rejects_conflicts(metadata, log):
    metadata.create_topic("t", config={"retention.ms": 5})
    info = metadata.alter_topic("t", {"retention_ms": None, "segment.bytes": 1024})
    assert info.config == {"segment.bytes": "1024"}
    end = log.log_end
    assert metadata.alter_topic("t", {"segment.bytes": "1024"}).config == info.config
    assert log.log_end == end  # nothing changed, nothing written
    metadata.alter_topic("t", {"max.compaction.lag.ms": 5})
    for bad in ({"min.compaction.lag.ms": 9}, {"segment.bytez": 1}, {"nokey": None}):
        with pytest.raises(ConfigError):
            metadata.alter_topic("t", bad)
    with pytest.raises(UnknownTopicOrPartition):
        metadata.alter_topic("nope", {})


def test_two_writers_never_share_a_name_a_slot_or_a_producer_id(log):
    one, two = MetadataLog(log), MetadataLog(log)
    log.race = lambda: two.create_topic("rival", 2)
    assert [p.slot for p in one.create_topic("mine", 1).partitions.values()] == [103]
    log.race = lambda: two.create_topic("same")
    with pytest.raises(TopicAlreadyExists):
        one.create_topic("same")
    taken = []
    log.race = lambda: taken.extend(two.allocate_producer_ids())
    mine = one.allocate_producer_ids()
    assert set(mine).isdisjoint(taken)
    assert sorted([*mine, *taken]) == list(range(2000))


@pytest.mark.parametrize("strict", [True, False])
def test_producer_ids_are_durable_before_they_are_allocated(strict):
    log = MemoryLog(strict=strict)
    given_out = MetadataLog(log).allocate_producer_ids()
    log.lose_what_is_not_durable()
    assert set(MetadataLog(log).allocate_producer_ids()).isdisjoint(given_out)


@pytest.mark.parametrize("strict", [True, False])
def test_reserved_producer_ids_survive_a_power_loss(strict):
    log = MemoryLog(strict=strict)
    MetadataLog(log).reserve_producer_ids(5000)
    log.lose_what_is_not_durable()
    assert MetadataLog(log).allocate_producer_ids().start == 5000


def test_metadata_is_made_durable_before_it_is_shown(log):
    metadata = MetadataLog(log)
    put(log, records.TopicRecord("t", TOPIC_ID).encode())
    assert log.high_watermark == 0
    assert metadata.topic("t")
    log.lose_what_is_not_durable()
    assert MetadataLog(log).topic("t")


def test_a_metadata_log_of_kafka_gets_slots_in_order_of_creation(log):
    put(
        log,
        records.ConfigRecord("t", "retention.ms", "7").encode(),
        records.TopicRecord("t", TOPIC_ID).encode(),
        records.PartitionRecord(0, TOPIC_ID, None, leader_epoch=4).encode(),
        records.PartitionRecord(1, TOPIC_ID, None).encode(),
        records.PartitionRecord(0, bytes(16), None).encode(),
        records.RemoveTopicRecord(bytes(16)).encode(),
    )
    info = MetadataLog(log).topic("t")
    assert [p.slot for p in info.partitions.values()] == [101, 102]
    assert info.partitions[0].leader_epoch == 4
    assert info.config == {"retention.ms": "7"}


NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), NAMES, st.integers(1, 3)),
        st.tuples(st.just("delete"), NAMES),
        st.tuples(st.just("grow"), NAMES, st.integers(1, 5)),
        st.tuples(st.just("alter"), NAMES, st.integers(0, 3)),
        st.tuples(st.just("ids")),
    ),
    max_size=15,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.data())
def test_the_live_state_equals_a_replay_at_every_cut_into_refreshes(steps, data):
    log = MemoryLog()
    live, other = MetadataLog(log), MetadataLog(log)
    for step in steps:
        who = data.draw(st.sampled_from([live, other]))
        try:
            match step:
                case ("create", name, count):
                    who.create_topic(name, count)
                case ("delete", name):
                    who.delete_topic(name)
                case ("grow", name, count):
                    who.create_partitions(name, count)
                case ("alter", name, value):
                    who.alter_topic(name, {"retention.ms": value or None})
                case ("ids",):
                    who.allocate_producer_ids()
        except (TopicAlreadyExists, UnknownTopicOrPartition, InvalidPartitions):
            pass
    replay = MetadataLog(log)
    for one in (live, other, replay):
        one.refresh()
    for one in (live, other):
        assert one.topics == replay.topics
        assert one.deleted == replay.deleted
        assert one.next_producer_id == replay.next_producer_id
    slots = [
        p.slot
        for info in [*replay.topics.values(), *replay.deleted.values()]
        for p in info.partitions.values()
    ]
    assert len(slots) == len(set(slots))


def test_a_reader_reports_its_position_and_the_remaining_bytes():
    reader = Reader(b"\x01\x02")
    reader.i8()
    assert (reader.position, reader.remaining) == (1, 1)


def test_an_adopted_topic_must_have_a_legal_name_and_partitions(metadata):
    with pytest.raises(InvalidTopic):
        metadata.adopt_topic("not a name", TOPIC_ID, {0: 1})
    with pytest.raises(InvalidPartitions):
        metadata.adopt_topic("t", TOPIC_ID, {})
    assert metadata.adopt_topic("t", TOPIC_ID, {0: 4}).topic_id == TOPIC_ID
