"""`eoslog position` lists and deletes named positions."""

from __future__ import annotations

import eoslog


def test_positions_are_listed_with_their_types_and_deleted_by_name(shop, place):
    assert shop("position", "list").rows == []
    with eoslog.open(place) as log:
        with log.producer(transactional_id="job") as producer:
            producer.init_transactions()
            with producer.transaction() as tx:
                tx.set_position("crm", 7)
                tx.set_position("files/a", "page 2")
                tx.set_position("token", b"\x00\xff")
            producer.begin_transaction()
            eoslog.Transaction(producer).set_position("crm", 8)
            held = shop("position", "delete", "crm", "-y")
            assert held.code == 4 and "part of an open transaction" in held.err
            producer.abort_transaction()
    assert shop("position", "list").rows == [
        {"name": "crm", "type": "int", "value": 7},
        {"name": "files/a", "type": "str", "value": "page 2"},
        {"name": "token", "type": "bytes", "value": "00ff"},
    ]
    assert shop("position", "delete", "crm", "-y").code == 0
    again = shop("position", "delete", "crm", "-y")
    assert again.code == 3 and "position 'crm' does not exist" in again.err
    assert [row["name"] for row in shop("position", "list").rows] == ["files/a", "token"]
