"""The oracle of the harnesses accepts only aborted transactions it can explain.

The logs alone may no longer know some aborted transactions.
"""

from __future__ import annotations

import pytest

from tests.torture.oracles.verify import _all_but_gone

KNOWN = [[1, 20, 24], [2, 62, 64]]
"""(producer id, first offset, offset of the marker)"""


@pytest.mark.parametrize(
    ("found", "gone"),
    [
        (KNOWN, 0),
        (KNOWN[1:], 23),  # its records are below the log start
        ([[1, 23, 24], KNOWN[1]], 23),
        ([], True),  # compacted
    ],
)
def test_records_and_state_of_an_aborted_transaction_may_be_deleted_together(found, gone) -> None:
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
def test_the_oracle_rejects_any_other_difference(found, gone) -> None:
    assert not _all_but_gone(found, KNOWN, gone)
