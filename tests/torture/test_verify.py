"""The oracle of the harnesses: what the logs alone may not know of aborted transactions any more."""

from __future__ import annotations

import pytest

from tests.torture.verify import _all_but_gone

KNOWN = [[1, 20, 24], [2, 62, 64]]
"""(producer id, first offset, offset of the marker)"""


@pytest.mark.parametrize(
    ("found", "gone"),
    [
        (KNOWN, 0),
        (KNOWN[1:], 23),  # its records lie below the log's start
        ([[1, 23, 24], KNOWN[1]], 23),
        ([], True),  # compacted
    ],
)
def test_an_aborted_transaction_may_be_gone_as_far_as_its_records_are(found, gone) -> None:
    assert _all_but_gone(found, KNOWN, gone)


@pytest.mark.parametrize(
    ("found", "gone"),
    [
        (KNOWN[1:], 0),
        (KNOWN[:1], 23),  # this one has all of its records
        ([[1, 19, 24], KNOWN[1]], 23),  # longer than known
        ([[3, 30, 31], *KNOWN], 23),
        ([[3, 30, 31]], True),
    ],
)
def test_nothing_else_may_differ(found, gone) -> None:
    assert not _all_but_gone(found, KNOWN, gone)
