"""A log is made aloud; options that are misspelt have a hint."""

from __future__ import annotations

import logging

import pytest

import eoslog
from eoslog.errors import ConfigError


def test_field_C7_creating_a_log_is_logged_at_info_and_opening_one_is_not(tmp_path, caplog):
    caplog.set_level(logging.INFO, "eoslog")
    eoslog.open(tmp_path / "shpo").close()
    told = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    assert [str(tmp_path / "shpo") in text and "created a log" in text for text in told] == [True]
    caplog.clear()
    eoslog.open(tmp_path / "shpo").close()
    assert "created a log" not in caplog.text
    for make in (eoslog.Producer, eoslog.Consumer):
        caplog.clear()
        make({"log.dir": tmp_path / make.__name__}).close()
        assert caplog.text.count("created a log") == 1


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({"readonly": True}, "read_only"),
        ({"readOnly": True}, "read_only"),
        ({"creat": False}, "create"),
        ({"durabilty": "os"}, "durability"),
        ({"modes": 0o770}, "mode"),
        ({"offset_metadata_max_byte": 1}, "offset.metadata.max.bytes"),
    ],
)
def test_field_C7_a_misspelt_option_of_open_names_the_nearest(tmp_path, options, meant):
    (key,) = options
    with pytest.raises(ConfigError, match=f"'{key}'; did you mean '{meant}'"):
        eoslog.open(tmp_path / "log", **options)
    assert not (tmp_path / "log").exists()


def test_field_C7_misspelt_options_of_clients_and_topics_name_the_nearest(tmp_path):
    with eoslog.open(tmp_path / "log") as log:
        with pytest.raises(ConfigError, match="did you mean 'retention.ms'"):
            log.create_topic("t", config={"retention_m": 1})
        log.create_topic("t")
        with pytest.raises(ConfigError, match="did you mean 'retention.ms'"):
            log.alter_topic("t", {"retentionms": 1})
        with pytest.raises(ConfigError, match="did you mean 'transactional.id'"):
            log.producer(transactionalid="x")
        with pytest.raises(ConfigError, match="did you mean 'auto.offset.reset'"):
            log.consumer("t", auto_ofset_reset="earliest")
        with pytest.raises(ConfigError, match="did you mean 'group.id'"):
            log.consumer("t", groupid="g")
