"""Configuration keys with absurd values raise ConfigError, which names the key."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import eoslog
from eoslog import errors
from eoslog.config.keys import ConsumerConfig, LogConfig, ProducerConfig, TopicConfig
from eoslog.errors import ConfigError, EoslogError
from tests.field.absurd import values

pytest.importorskip("pyarrow")

KINDS: dict[str, Any] = {
    "producer": ProducerConfig,
    "consumer": ConsumerConfig,
    "topic": TopicConfig,
    "log": LogConfig,
}
KEYS = [(kind, key) for kind, cls in KINDS.items() for key in cls.parsers()]


@pytest.mark.parametrize(("kind", "key"), KEYS)
def test_field_C4_an_error_about_an_absurd_value_names_its_key(kind: str, key: str) -> None:
    for label, value in values().items():
        try:
            KINDS[kind].of({key: value})
        except EoslogError as error:
            text = str(error)
            assert key in text, (label, text)
            assert len(text) < 1000, label
            text.encode()


@pytest.mark.parametrize("kind", KINDS)
def test_field_C4_absurd_keys_and_configurations_are_rejected(kind: str) -> None:
    for label, value in values().items():
        for given in (value, {"no.such.key": value}):
            try:
                KINDS[kind].of(given)
            except EoslogError as error:
                str(error).encode()
                assert str(error), label
            else:
                assert not given or value is None, label


def test_field_C4_an_error_about_an_invalid_dedupe_store_names_it() -> None:
    for store, key in (([], 1), ([1], 1), ("abc", "a"), (frozenset({1}), 1), (5, 1), ({}, [])):
        with pytest.raises(ConfigError, match="dedupe: (store|key): expected"):
            eoslog.dedupe(store, key)  # type: ignore[arg-type]
    assert [eoslog.dedupe(store, 1) for store in [set()] for _ in range(2)] == [True, False]


def test_field_C4_a_message_with_lone_surrogates_can_be_logged_and_pickled() -> None:
    for error in (
        ConfigError("no topic caf\udce9"),
        errors.StorageError("no file", 2, "/tmp/caf\udce9"),
        errors.KafkaError(errors.ErrorCode.INVALID_REQUEST, "\ud800"),
        errors.error_for(errors.ErrorCode.INVALID_GROUP_ID, "\ud800"),
    ):
        for one in (error, pickle.loads(pickle.dumps(error))):
            assert "\\ud" in str(one)
            str(one).encode()
            repr(one).encode()
            assert type(one) is type(error)
            assert str(one) == str(error)
