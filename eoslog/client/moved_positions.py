"""Where a run goes on in its source: what it commits at the target, and believes of it.

A position counts in one topic. One that was deleted and made again under the name is another, and
its records up to that position would be left out, so the metadata of each committed position tells
the topic's id. A position without one is of an older run, or was set by somebody, and is believed.
"""

from __future__ import annotations

from collections.abc import Mapping

from eoslog.errors import IllegalState, OffsetOutOfRange
from eoslog.model import OffsetAndMetadata, TopicPartition

_TOPIC = "eoslog topic id "


def positions_in(
    offsets: Mapping[TopicPartition, int], ids: Mapping[str, str]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Positions as they are committed, by the ids of the source's topics."""
    return {
        tp: OffsetAndMetadata(at, metadata=f"{_TOPIC}{ids[tp.topic]}" if ids.get(tp.topic) else "")
        for tp, at in offsets.items()
    }


def check_topics(
    job: str, found: Mapping[TopicPartition, OffsetAndMetadata], ids: Mapping[str, str]
) -> None:
    """See that positions count in the topics that the source has now.

    Raises:
        IllegalState: a topic was made again since.
    """
    for tp, at in sorted(found.items()):
        text, now = at.metadata or "", ids.get(tp.topic, "")
        known = text.removeprefix(_TOPIC)
        if text.startswith(_TOPIC) and now and known != now:
            raise IllegalState(
                f"job {job!r} stands at offset {at.offset} of {tp} in the topic with the id "
                f"{known}; the source's {tp.topic!r} is another one, {now}: {_way_on(job, tp)}"
            )


def check_ends(
    job: str, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> None:
    """See that the source reaches up to the positions.

    Raises:
        OffsetOutOfRange: it ends before one: it is not what the job has read.
    """
    for tp, at in sorted(positions.items()):
        if at > ends[tp]:
            raise OffsetOutOfRange(
                f"job {job!r} stands at offset {at} of {tp}, and the source ends at {ends[tp]}: it "
                f"was made again or cut since: {_way_on(job, tp)}"
            )


def _way_on(job: str, tp: TopicPartition) -> str:
    return (
        f"delete {tp.topic!r} at the target to begin anew, or set the offsets of group {job!r} "
        "there to where the source is to be read on, behind the records that are there already"
    )
