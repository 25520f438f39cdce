"""Topics, partitions and durable ends of a directory, from its files alone.

They are read up to damage, and without a session, so the directory may be closed, copied or in use.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from eoslog import _core
from eoslog.errors import CorruptRecord
from eoslog.model import CLUSTER_METADATA_TOPIC
from eoslog.storage.directory.session import durable_end_in, past_control
from eoslog.storage.format import checkpoints
from eoslog.storage.fs import files
from eoslog.storage.metadata.image import MetadataFold, TopicInfo, internal_topics
from eoslog.storage.metadata.records import decode
from eoslog.storage.segment.segment import LOG, file_path, offsets_in
from eoslog.storage.segment.segment_files import SegmentFiles, offset_of_name

__all__ = ["METADATA", "batches_before_damage", "durable_ends", "living_partitions", "topic_ids"]

METADATA = f"{CLUSTER_METADATA_TOPIC}-0"


def living_partitions(root: str) -> set[tuple[str, int]]:
    """Return (topic, number) of all partitions in a directory's metadata log, up to damage.

    Leaves out topics with the name of a deleted one, because records under that name are ambiguous.
    """
    fold = _metadata(root)
    deleted = {topic.name for topic in fold.deleted.values()}
    return {
        (topic.name, number)
        for topic in fold.topics.values()
        if topic.name not in deleted
        for number in topic.partitions
    }


def durable_ends(root: str) -> dict[tuple[str, int], int]:
    """Return (topic, number) -> durable end in the slots that the last session left.

    Recovery of a directory without a clean close uses the same values (`torn_tails.accept_zeros`).
    """
    with contextlib.suppress(OSError), past_control(root) as control:
        return {
            (topic.name, number): durable_end_in(control, partition.slot, topic.topic_id)
            for topic in _topics(root)
            for number, partition in topic.partitions.items()
        }
    return {}


def topic_ids(root: str) -> dict[tuple[str, int], bytes]:
    """Return (topic, number) -> topic id that the partition's directory must have.

    Leaves out topics with the name of a deleted one, whose directory may not be removed yet.
    """
    deleted = {topic.name for topic in _metadata(root).deleted.values()}
    return {
        (topic.name, number): topic.topic_id
        for topic in _topics(root)
        if topic.name not in deleted
        for number in topic.partitions
    }


def batches_before_damage(path: str) -> Iterator[_core.Batch]:
    """Yield the batches of a segment up to the first damaged one."""
    segment = SegmentFiles(path, offset_of_name(path) or 0)
    with contextlib.suppress(CorruptRecord):
        for batch in segment.batches():
            if not isinstance(batch, _core.Batch) or not batch.valid:
                return
            yield batch


def _metadata(root: str) -> MetadataFold:
    """Fold a directory's metadata log, up to damage."""
    fold = MetadataFold({}, {}, 0)
    path = os.path.join(root, METADATA)
    with contextlib.suppress(CorruptRecord):
        for base in offsets_in(path, LOG) if files.is_dir(path) else ():
            for batch in batches_before_damage(file_path(path, base, LOG)):
                for _, _, _, value, _ in () if batch.control else batch.records():
                    fold.apply(decode(value))
    return fold


def _topics(root: str) -> Iterator[TopicInfo]:
    """Yield all topics of a directory, as far as its files are readable."""
    yield from _metadata(root).topics.values()
    with contextlib.suppress(CorruptRecord):
        found = checkpoints.read_meta_properties(root)
        if found is not None:
            counts = found.transaction_partitions, found.offsets_partitions
            yield from internal_topics(*counts).values()
