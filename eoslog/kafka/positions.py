"""Positions of export and import jobs, and their checks.

A position counts offsets of one topic. If the source topic was deleted and re-created under the
same name, resuming at the old position would leave records out. The metadata of each committed
position therefore records the topic's id. A position at a cluster records the id of the target
topic too: if that topic was deleted, the new one lacks the records before the position. A position
without an id is from an older run, or a user set it; it is accepted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from eoslog.errors import IllegalState, OffsetOutOfRange
from eoslog.model import OffsetAndMetadata, TopicPartition

_IDS = re.compile("eoslog topic id ([^ ]+)(?:, at the target ([^ ]+))?")

Resume = Callable[[TopicPartition], str]


def positions_in(
    offsets: Mapping[TopicPartition, int],
    ids: Mapping[str, str],
    targets: Mapping[str, str] | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the positions to commit, with ids of the topics as metadata.

    Args:
        offsets: the next offset to copy, by source partition.
        ids: ids of the source's topics.
        targets: ids of the target's topics; None if they are recorded elsewhere.
    """

    def metadata(topic: str) -> str:
        source, target = ids.get(topic), (targets or {}).get(topic)
        text = f"eoslog topic id {source}" if source else ""
        return f"{text}, at the target {target}" if text and target else text

    return {tp: OffsetAndMetadata(at, metadata=metadata(tp.topic)) for tp, at in offsets.items()}


def of_targets(
    found: Mapping[TopicPartition, OffsetAndMetadata], targets: Mapping[str, str]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the positions without those of deleted target topics.

    Args:
        found: the positions of a job.
        targets: ids of the topics that the target has now.
    """
    return {
        tp: at
        for tp, at in found.items()
        if (known := _ids(at)[1]) == "" or known == targets.get(tp.topic, known)
    }


def _ids(at: OffsetAndMetadata) -> tuple[str, str]:
    """Return the ids of the source topic and the target topic; empty text if unknown."""
    match = _IDS.fullmatch(at.metadata or "")
    return (match[1], match[2] or "") if match else ("", "")


def check_topics(
    job: str, found: Mapping[TopicPartition, OffsetAndMetadata], ids: Mapping[str, str],
    resume: Resume | None = None,
) -> None:  # fmt: skip
    """Check that the positions count offsets of the topics that the source has now.

    Args:
        job: the name of the job.
        found: its positions.
        ids: ids of the source's topics.
        resume: says how to set a position; None for a committed offset at the target.

    Raises:
        IllegalState: if a topic was re-created since.
    """
    for tp, at in sorted(found.items()):
        known, now = _ids(at)[0], ids.get(tp.topic, "")
        if known and now and known != now:
            raise IllegalState(
                f"job {job!r} has copied {tp} up to offset {at.offset} of topic id {known}, but "
                f"the source topic {tp.topic!r} now has id {now}: it was deleted and re-created; "
                f"{_remedy(job, tp, resume)}"
            )


def check_ends(
    job: str, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int],
    resume: Resume | None = None,
) -> None:  # fmt: skip
    """Check that the source reaches up to the positions.

    Args:
        job: the name of the job.
        positions: its positions.
        ends: where the source ends.
        resume: says how to set a position; None for a committed offset at the target.

    Raises:
        OffsetOutOfRange: if a source partition ends before the position of the job.
    """
    for tp, at in sorted(positions.items()):
        if at > ends[tp]:
            raise OffsetOutOfRange(
                f"job {job!r} has copied {tp} up to offset {at}, but the source ends at offset "
                f"{ends[tp]}: it was re-created or truncated; {_remedy(job, tp, resume)}"
            )


def check_starts(
    job: str, positions: Mapping[TopicPartition, int], starts: Mapping[TopicPartition, int]
) -> None:
    """Check that the source still has the records after the positions of an export.

    Args:
        job: the name of the job.
        positions: its positions.
        starts: where the source begins.

    Raises:
        OffsetOutOfRange: if a source partition begins after the position of the job.
    """
    for tp, at in sorted(positions.items()):
        if at < starts[tp]:
            raise OffsetOutOfRange(
                f"job {job!r} has copied {tp} up to offset {at}, but the source begins at offset "
                f"{starts[tp]}: the records between were deleted before they were copied; to "
                f"continue without them, set the offset of group {job!r} at the target to "
                f"{starts[tp]}"
            )


def _remedy(job: str, tp: TopicPartition, resume: Resume | None) -> str:
    how = (
        f"set the offsets of group {job!r} at the target to the first source offset that is not "
        "copied yet"
        if resume is None
        else resume(tp)
    )
    return f"to start over, delete topic {tp.topic!r} at the target; to continue, {how}"
