"""`produce` and `consume` return what was put in, through files and pipes.

They also work through groups and transactions.
"""

import csv
import io
import json
import re

import pytest

import eoslog
from eoslog.commands.groups import targets_of
from eoslog.errors import UnknownTopicOrPartition


@pytest.fixture
def stdin(monkeypatch):
    """Gives a command its input."""

    def give(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give


def test_lines_of_stdin_are_consumed_in_order(shop, stdin):
    stdin(b"one\ntwo\r\n\nthree")
    done = shop("produce", "orders", "-p", 1)
    assert (done.code, done.out) == (0, "")
    assert "wrote 4 records" in done.err
    rows = shop("consume", "orders").rows
    assert [(row["partition"], row["offset"]) for row in rows] == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert [row["value"] for row in rows] == ["one", "two", "", "three"]
    assert all(row["key"] is None for row in rows)


def test_keyed_lines_go_to_the_partitions_that_kafka_clients_choose(shop, tmp_path):
    path = tmp_path / "lines"
    path.write_text("21:a\nfoobar:b\n21:c:d\n")
    assert shop("produce", "orders", path, "-k", ":").code == 0
    rows = shop("consume", "orders").rows
    # murmur2("21") & 0x7fffffff = 1173551340, murmur2("foobar") & 0x7fffffff = 1357151166
    assert {(row["key"], row["partition"]) for row in rows} == {("21", 0), ("foobar", 0)}
    assert [row["value"] for row in rows if row["key"] == "21"] == ["a", "c:d"]


def test_a_line_without_the_separator_raises_and_is_shown(shop, tmp_path):
    path = tmp_path / "lines"
    path.write_text("no separator here\n")
    found = shop("produce", "orders", path, "-k", ":", "-t", "tx")
    assert found.code == 1
    assert "no separator here" in found.err
    assert shop("consume", "orders").rows == []


def test_produce_accepts_the_output_of_consume(shop, stdin, tmp_path):
    lines = [
        {"key": "k", "value": "v", "timestamp": 1234, "headers": [["h", "x"], ["n", None]]},
        {"key": None, "value_hex": "00ff"},
        {"key_hex": "ff", "value": None},
    ]
    stdin("\n".join(map(json.dumps, lines)).encode())
    assert shop("produce", "orders", "--jsonl", "-p", 0).code == 0
    copy = tmp_path / "copy"
    copy.write_text(shop("consume", "orders").out)
    shop("topic", "create", "again")
    assert shop("produce", "again", copy, "--jsonl").code == 0
    wanted = ("timestamp", "key", "key_hex", "value", "value_hex", "headers")
    first, second = (
        [{k: row.get(k) for k in wanted} for row in shop("consume", name).rows]
        for name in ("orders", "again")
    )
    assert first == second
    assert first[0]["headers"] == [["h", "x"], ["n", None]]
    assert (first[1]["value_hex"], first[2]["key_hex"]) == ("00ff", "ff")


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"timestamp": "soon", "value": "x"}', '{"value_hex": "g"}']
)
def test_an_invalid_json_object_raises_and_its_line_is_shown(shop, stdin, line):
    stdin(line.encode())
    found = shop("produce", "orders", "--jsonl")
    assert found.code == 1
    assert line[:10] in found.err


def test_an_unknown_topic_or_key_is_rejected(shop, stdin):
    stdin(b"x\n")
    assert shop("produce", "nope").code == 3
    stdin(b"x\n")
    found = shop("produce", "orders", "-c", "linger.mss=1")
    assert found.code == 2
    assert "linger.ms" in found.err
    assert shop("consume", "nope").code == 3
    assert shop("produce", "orders", "/no/such/file").code == 2


@pytest.mark.slow
def test_offset_partition_and_max_select_records(shop, stdin):
    stdin(b"".join(b"%d\n" % n for n in range(10)))
    shop("produce", "orders", "-p", 0)
    assert [row["value"] for row in shop("consume", "orders", "-o", 7).rows] == ["7", "8", "9"]
    assert [row["value"] for row in shop("consume", "orders", "-n", 2).rows] == ["0", "1"]
    assert shop("consume", "orders", "-p", 1).rows == []
    assert shop("consume", "orders", "-p", 9).code == 3
    assert shop("consume", "orders", "-g", "g", "-o", 1).code == 2


def test_a_transaction_is_visible_completely_or_not_at_all(shop, stdin):
    stdin(b"a\nb\n")
    assert shop("produce", "orders", "-t", "tx", "-p", 0).code == 0
    assert [row["value"] for row in shop("consume", "orders").rows] == ["a", "b"]
    (row,) = shop("txn", "list", "--all").rows
    assert (row["transactional_id"], row["state"]) == ("tx", "CompleteCommit")
    assert shop("txn", "list").rows == []
    (about,) = shop("txn", "describe", "tx").rows
    assert about["transactional_id"] == "tx"
    assert shop("txn", "describe", "nope").code == 3
    assert shop("txn", "abort", "nope").code == 3


def test_a_transaction_can_be_aborted_only_once(shop, place):
    with eoslog.open(place) as log:
        producer = log.producer(transactional_id="tx")
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("orders", b"a", partition=0)
        producer.flush()
        aborted = shop("txn", "abort", "tx")
        assert (aborted.code, aborted.err) == (0, "aborted tx\n")
        with pytest.raises(eoslog.errors.ProducerFenced):
            producer.commit_transaction()
        producer.close()
        assert not log.abort_transaction("tx")
    again = shop("txn", "abort", "tx")
    assert again.code == 3
    assert again.err == "eoslog: 'tx' has no open transaction; nothing was aborted\n"
    assert shop("consume", "orders").rows == []


@pytest.mark.slow
def test_a_group_resumes_at_its_position_and_can_be_reset_and_deleted(shop, stdin, place):
    stdin(b"".join(b"%d:%d\n" % (n, n) for n in range(20)))
    shop("produce", "orders", "-k", ":")
    first = shop("consume", "orders", "-g", "g", "-n", 20).rows
    assert sorted(int(row["value"]) for row in first) == list(range(20))
    assert shop("consume", "orders", "-g", "g").rows == []
    (row,) = shop("group", "list").rows
    assert (row["group"], row["partitions"]) == ("g", 2)
    assert [row["lag"] for row in shop("group", "describe", "g").rows] == [0, 0]
    assert shop("group", "reset", "g", "-t", "orders", "--to", "nonsense").code == 2
    dry = shop("group", "reset", "g", "-t", "orders", "--to", "earliest", "--dry-run")
    assert [row["offset"] for row in dry.rows] == [0, 0]
    assert shop("consume", "orders", "-g", "g").rows == []
    assert shop("group", "reset", "g", "-t", "orders", "--to", "earliest").code == 0
    again = shop("consume", "orders", "-g", "g").rows
    assert len(again) == 20
    assert shop("group", "delete", "g", "-y").code == 0
    with eoslog.open(place) as log:
        key = eoslog.TopicPartition("orders", 0)
        version = {key: eoslog.OffsetAndMetadata(1)}
        log._engine.groups.commit_offsets("__eoslog-spark-g", "", -1, version)
    refused = shop("group", "delete", "__eoslog-spark-g", "-y")
    assert refused.code == 1 and "stores Spark write versions" in refused.err
    assert shop("group", "delete", "__eoslog-spark-g", "-y", "--force").code == 0
    assert shop("group", "list").rows == []
    assert shop("group", "describe", "g").code == 3


def test_dump_decodes_a_segment_and_finds_a_flipped_bit(shop, stdin, place):
    stdin(b"hello\n")
    shop("produce", "orders", "-p", 0)
    path = place / "orders-0" / f"{0:020d}.log"
    whole = json.loads(shop("dump", path, form="json").out)
    (batch,) = whole["batches"]
    assert batch["valid"]
    assert bytes.fromhex(batch["records"][0]["value"]) == b"hello"
    assert "hello" in shop("dump", path, form="table").out
    assert "orders" in shop("dump", place / "orders-0").out
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert shop("dump", path, form="json").code == 5
    assert shop("check").code == 5


def test_check_and_stats_accept_an_undamaged_log(shop, stdin):
    stdin(b"hello\n")
    shop("produce", "orders", "-p", 0)
    done = shop("check", "--full")
    assert done.code == 0
    assert done.rows[-1]["kind"] == "verdict" and done.rows[-1]["ok"]
    (found,) = shop("stats").rows
    assert found["partitions"]["orders-0"]["log_end"] == 1
    assert "orders-0" in shop("stats", form="table").out
    assert shop("repair").code == 0


def test_locks_names_the_processes_that_have_the_directory_open(shop, place):
    import os

    import eoslog

    assert shop("locks").rows == []
    with eoslog.open(place):
        (row,) = shop("locks").rows
    assert row["pid"] == os.getpid()


def test_locks_names_the_holder_of_an_append_lock_and_its_duration(shop, place):
    import eoslog

    with eoslog.open(place) as log:
        topic = log.topics()[0]
        core = log._engine.partition(topic, 0).core
        core.lock_for_recovery(1.0)
        try:
            (row,) = shop("locks").rows
        finally:
            core.unlock_after_recovery()
        (after,) = shop("locks").rows
    (held,) = row["holds"]
    assert held.startswith(f"{topic}-0 for ")
    assert after["holds"] == []


def test_headers_that_are_not_utf_8_survive_consume_and_produce(shop, stdin, tmp_path):
    headers = [["b", {"hex": "ff01"}], ["t", r"\xff"], ["n", None], ["e", ""]]
    stdin(json.dumps({"value": "v", "headers": headers}).encode())
    assert shop("produce", "orders", "--jsonl").code == 0
    copy = tmp_path / "copy"
    copy.write_text(shop("consume", "orders").out)
    assert json.loads(copy.read_text())["headers"] == headers
    shop("topic", "create", "again")
    assert shop("produce", "again", copy, "--jsonl").code == 0
    assert shop("consume", "again").rows[0]["headers"] == headers


def test_csv_has_columns_for_bytes_that_are_not_text(shop, stdin):
    stdin(b'{"key_hex": "fe", "value_hex": "ff00"}\n{"key": "k", "value": "v"}\n')
    shop("produce", "orders", "--jsonl", "-p", 0)
    rows = list(csv.DictReader(io.StringIO(shop("consume", "orders", form="csv").out)))
    found = [[row[name] for name in ("key", "key_hex", "value", "value_hex")] for row in rows]
    assert found == [["", "fe", "", "ff00"], ["k", "", "v", ""]]
    header = "topic,partition,offset,timestamp,key,key_hex,value,value_hex,headers\n"
    assert shop("consume", "orders", "-p", 1, form="csv").out == header


def test_csv_distinguishes_a_null_from_an_empty_text(shop, stdin):
    stdin(
        b'{"key": "", "value": null}\n{"key": null, "value": ""}\n{"key_hex": "fe", "value": ","}\n'
        b'{"key": "a\\nb", "value": "\\""}\n'
    )
    shop("produce", "orders", "--jsonl", "-p", 0)
    text = shop("consume", "orders", form="csv").out
    fields = [re.sub(r"^orders,0,\d+,\d+,", "", line) for line in text.splitlines()[1:]]
    assert fields == ['"",,,,', ',,"",,', ',fe,",",,', '"a', 'b",,"""",,']
    read = list(csv.reader(io.StringIO(text)))[1:]
    assert [row[4:] for row in read] == [
        ["", "", "", "", ""], ["", "", "", "", ""], ["", "fe", ",", "", ""],
        ["a\nb", "", '"', "", ""],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"keys": "k"}', "unknown 'keys': known are key, key_hex, value, value_hex, headers"),
        (b"[1]", "expected an object"),
        (b'{"key": x}', "Expecting value at column 9, in '{\"key\": x}'"),
        (b"[" * 200_000, "nested too deep"),
        (b'{"value": "\xff"}', "not valid UTF-8: invalid start byte at byte 11"),
        ('{"value": "x"}'.encode("utf-16"), "not valid UTF-8"),
        (b'{"value": "\\ud800"}', "value: half a surrogate pair"),
        (b'{"timestamp": 1e999}', "timestamp: expected ms since 1970, got Infinity"),
        (b'{"timestamp": "12"}', 'timestamp: expected ms since 1970, got "12"'),
        (b'{"timestamp": true}', "timestamp: expected ms since 1970, got true"),
        (b'{"timestamp": -2}', "timestamp: expected ms since 1970, got -2"),
        (b'{"value_hex": 12}', "value_hex: expected hexadecimal digits, got 12"),
        (b'{"key": "k", "key_hex": "00"}', "key and key_hex: give one of them"),
        (b'{"headers": {"a": "b"}}', "headers: expected [[name, value], ...]"),
        (b'{"headers": "abc"}', "headers: expected [[name, value], ...]"),
        (b'{"headers": [["a"]]}', "headers: expected [[name, value], ...]"),
        (b'{"headers": ["ab"]}', "headers: expected [[name, value], ...]"),
        (b'{"headers": [[1, "b"]]}', "headers: expected [[name, value], ...]"),
        (b'{"headers": [["a", 1]]}', "header 'a': expected text, null or"),
        (b'{"headers": [["a", {"hex": "0"}]]}', "header 'a': expected hexadecimal digits"),
    ],
)
def test_an_invalid_field_of_a_json_object_is_named(shop, stdin, line, says):
    stdin(line)
    found = shop("produce", "orders", "--jsonl")
    assert found.code == 1
    assert f"line 1: {says}" in found.err
    assert "0 records before it were written" in found.err


def test_a_byte_order_mark_and_a_missing_timestamp_are_accepted(shop, stdin):
    stdin(b'\xef\xbb\xbf{"value": "v", "timestamp": -1, "offset": 7, "partition": 1, "topic": "t"}')
    assert shop("produce", "orders", "--jsonl", "-p", 0).code == 0
    (row,) = shop("consume", "orders").rows
    assert (row["partition"], row["offset"], row["value"]) == (0, 0, "v")


def test_a_bad_line_is_reported_with_its_number_and_the_records_written(shop, stdin):
    stdin(b"a:1\nb:2\nbad\nc:3\n")
    found = shop("produce", "orders", "-k", ":")
    assert (found.code, found.out) == (1, "")
    assert "line 3: no ':', in 'bad'; 2 records before it were written" in found.err
    assert len(shop("consume", "orders").rows) == 2
    stdin(b"a:1\nbad\n")
    assert "line 2: no ':', in 'bad'; 1 record before it was" in shop(
        "produce", "orders", "-k", ":"
    ).err  # fmt: skip
    stdin(b"a:1\nbad\n")
    found = shop("produce", "orders", "-k", ":", "-t", "tx")
    assert (
        "line 2: no ':', in 'bad'; no record was written, because the transaction was aborted"
        in found.err
    )
    assert len(shop("consume", "orders").rows) == 3


def test_a_record_that_is_too_large_is_reported_with_its_line(shop, stdin):
    stdin(b"small\n" + b"x" * 2_000_000)
    found = shop("produce", "orders")
    assert found.code == 1
    assert "line 2: a record of" in found.err
    assert "1 record before it was written" in found.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("produce", "orders", "-k", ""), "the separator is empty"),
        (("produce", "orders", "-k", ":", "--jsonl"), "exclude each other"),
        (("consume", "orders", "-b", "-o", 1), "-b and -o exclude each other"),
        (("consume", "orders", "-o", -1), "offset -1 is out of range: orders-0 holds 0 to "),
        (("consume", "orders", "-n", 0), "0 is not in the range"),
        (("--format", "json", "consume", "orders", "-f"), "use --format jsonl"),
    ],
)
def test_contradictory_options_are_usage_errors(shop, stdin, arguments, says):
    stdin(b"")
    found = shop(*arguments)
    assert (found.code, found.out) == (2, "")
    assert says in found.err


def test_an_offset_beyond_the_end_means_the_end(shop, stdin):
    for partition, lines in ((0, b"a\nb\nc\n"), (1, b"d\n")):
        stdin(lines)
        shop("produce", "orders", "-p", partition)
    rows = shop("consume", "orders", "-o", 2).rows
    assert [(row["partition"], row["offset"]) for row in rows] == [(0, 2)]


@pytest.mark.parametrize("to", ["earliest", "latest", "1", "@0"])
def test_an_offset_of_an_old_topic_is_not_set_in_its_new_one(tmp_path, to):
    with eoslog.open(tmp_path / "log") as log:
        log.create_topic("t")
        with log.producer() as producer:
            producer.produce_many("t", ["a", "b"])
        targets = targets_of(log, [eoslog.TopicPartition("t", 0)], to)
        log.delete_topic("t")
        log.create_topic("t")
        with pytest.raises(UnknownTopicOrPartition, match="'t' was deleted and re-created"):
            log.reset_offsets("g", targets)
        assert log.groups() == []


def test_a_missing_partition_is_not_found_and_nothing_is_reset(shop, stdin):
    stdin(b"a\n")
    shop("produce", "orders", "-p", 0)
    assert len(shop("consume", "orders", "-g", "g").rows) == 1
    for only in (("-p", 7), ("-p", 0, "-p", 7)):
        found = shop("group", "reset", "g", "-t", "orders", *only, "--to", "earliest")
        assert (found.code, found.out) == (3, "")
        assert "no such partition: 7; see `eoslog -d " in found.err
        assert found.err.endswith("topic describe orders`\n")
    assert shop("consume", "orders", "-g", "g").rows == []
    found = shop("consume", "orders", "-p", 0, "-p", 9)
    assert (found.code, found.out) == (3, "")
    assert "no such partition: 9" in found.err


def test_a_missing_topic_is_named_even_without_input(shop, stdin):
    stdin(b"")
    done = shop("produce", "nope")
    assert done.code == 3
    assert "topic 'nope' does not exist" in done.err and "wrote" not in done.err


def test_consume_escapes_control_characters_in_values(shop, stdin):
    stdin(json.dumps({"value": "a\nfake-0  99 x\x1b[2J\x9b1m\tb"}).encode())
    assert shop("produce", "orders", "-p", 0, "--jsonl").code == 0
    (line,) = shop("consume", "orders", form="table").out.splitlines()
    assert "a\\nfake-0  99 x\\x1b[2J\\x9b1m\tb" in line
    assert shop("consume", "orders", form="jsonl").rows[0]["value"].endswith("\x9b1m\tb")


def test_group_list_escapes_control_characters_in_names(shop, place):
    with eoslog.open(place) as log:
        log.reset_offsets("g\x1b[2J\nfake", {eoslog.TopicPartition("orders", 0): 0})
    found = shop("group", "list", form="table")
    assert "\x1b" not in found.out and "g\\x1b[2J\\nfake" in found.out


def test_a_group_whose_first_commit_is_undecided_is_listed_and_described(shop, place):
    with eoslog.open(place) as log, log.producer(transactional_id="till") as producer:
        producer.init_transactions()
        with producer.transaction() as tx:
            tx.send_offsets({eoslog.TopicPartition("orders", 0): 0}, "g")
            assert log.groups() == ["g"]
            assert log.lag("g") == {}
            (row,) = shop("group", "list").rows
            assert (row["group"], row["state"], row["partitions"]) == ("g", "Empty", 0)
            assert shop("group", "describe", "g").code == 0


def test_field_C10_an_offset_outside_every_partition_is_a_usage_error(shop, stdin):
    stdin(b"a\n" * 7)
    assert shop("produce", "orders", "-p", 0).code == 0
    for offset in (8, 5000, 2**40, -1, -(2**40)):
        for words in (
            ("consume", "orders", "-o", offset),
            ("consume", "orders", "-f", "-o", offset),
            ("group", "reset", "g", "--create", "-t", "orders", "--to", offset),
            ("group", "reset", "g", "--create", "-t", "orders", "--to", offset, "--dry-run"),
        ):
            found = shop(*words)
            assert (found.code, found.out) == (2, ""), words
            assert f"offset {offset} is out of range" in found.err
            assert "orders-0 holds 0 to 7, orders-1 holds 0 to 0" in found.err
    assert shop("group", "list").rows == []


def test_field_C10_an_offset_of_one_partition_is_moved_into_the_others(shop, stdin):
    stdin(b"a\n" * 7)
    assert shop("produce", "orders", "-p", 0).code == 0
    found = shop("consume", "orders", "-o", 5)
    assert (found.code, [row["offset"] for row in found.rows]) == (0, [5, 6])
    assert "nearest offset instead: orders-1 holds 0 to 0" in found.err
    found = shop("group", "reset", "g", "--create", "-t", "orders", "--to", 5)
    assert [row["offset"] for row in found.rows] == [5, 0]
    end = shop("consume", "orders", "-p", 0, "-o", 7)
    assert (end.code, end.out, end.err) == (0, "", "")


def test_a_timestamp_beyond_64_bits_is_a_usage_error(shop):
    for words in (
        ("offsets", "orders", "--at", 10**23),
        ("group", "reset", "g", "--create", "-t", "orders", "--to", f"@{10**20}"),
    ):
        found = shop(*words)
        assert found.code == 2 and found.err.startswith(("eoslog: ", "Usage: ")), words


@pytest.mark.parametrize("words", [("produce", "orders"), ("consume", "orders")], ids=" ".join)
def test_the_example_keys_in_the_help_of_a_command_are_accepted_by_it(shop, stdin, words):
    stdin(b"")
    text = " ".join(shop(*words, "--help").out.split())
    examples = re.search(r"such as (\S+=\S+) or (\S+=\S+);", text)
    found = shop(*words, "-c", examples[1], "-c", examples[2])
    assert found.code == 0, found.err


def test_a_backup_below_a_missing_directory_names_that_directory(shop, tmp_path):
    found = shop("backup", tmp_path / "none" / "a" / "b")
    assert (found.code, found.out) == (3, "")
    assert "the parent directory does not exist; create it first" in found.err
    assert f"({tmp_path / 'none' / 'a'})" in found.err
    assert not (tmp_path / "none").exists()
