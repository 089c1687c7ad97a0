"""The error table."""

import pytest
from kio.schema.errors import ErrorCode

from ottla.wire.errors import Error, KafkaError


def test_the_table_is_kafkas():
    """Codes and retriability as in the independent table of kio; names differ only in kio's lower case."""
    theirs = {error.value: (error.name, error.retriable) for error in ErrorCode}
    ours = {error.code: (error.name.lower(), error.retriable) for error in Error}
    assert {code: ours[code] for code in theirs if code in ours} == {c: t for c, t in theirs.items() if c in ours}
    assert sorted(ours) == list(range(-1, 134))


def test_a_row():
    error = Error.NOT_LEADER_OR_FOLLOWER
    assert (error.code, error.retriable, error.name) == (6, True, "NOT_LEADER_OR_FOLLOWER")
    assert Error(6) is error
    assert Error(0) is Error.NONE
    with pytest.raises(ValueError):
        Error(9999)


def test_every_row_has_a_sentence_of_its_own():
    sentences = [error.message for error in Error if error is not Error.NONE]
    assert all(sentences)
    assert len(set(sentences)) == len(sentences)


def test_the_exception():
    plain = KafkaError(Error.INVALID_RECORD)
    assert (plain.error, plain.code, plain.message) == (Error.INVALID_RECORD, 87, Error.INVALID_RECORD.message)
    assert KafkaError(Error.INVALID_RECORD, "no key").message == "no key"
    assert str(KafkaError(Error.INVALID_RECORD, "no key")) == "INVALID_RECORD: no key"
