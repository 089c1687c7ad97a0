"""Log levels while the node runs, under the names that Kafka's tools use (KIP-412). They are not kept over a restart."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ottla.config.changes import APPEND, DELETE, SET, SUBTRACT, WORDS, Operation, UnknownOperation
from ottla.wire.errors import Error, KafkaError

ROOT = "root"
OURS = "ottla"
LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
NAMES = {number: name for name, number in reversed(LEVELS.items())} | {logging.DEBUG: "DEBUG"}


def levels() -> dict[str, str]:
    """Each logger of ours and the root, with the level that counts for it."""
    names = sorted(name for name in logging.root.manager.loggerDict if name.partition(".")[0] == OURS)
    loggers = {ROOT: logging.root} | {name: logging.getLogger(name) for name in names}
    return {name: _word(logger.getEffectiveLevel()) for name, logger in loggers.items()}


def _word(level: int) -> str:
    """The nearest level that has a name, not above the real one."""
    return NAMES[max((number for number in NAMES if number <= level), default=logging.DEBUG)]


def check(operations: Iterable[Operation]) -> None:
    known = levels()
    for operation in operations:
        name, kind, value = operation
        if kind not in (SET, DELETE, APPEND, SUBTRACT):
            raise UnknownOperation(operation)
        if kind in WORDS:
            why = f"{WORDS[kind]} operation is not allowed for the BROKER_LOGGER resource"
            raise KafkaError(Error.INVALID_REQUEST, why)
        if name not in known:
            raise KafkaError(Error.INVALID_CONFIG, f"Logger {name} does not exist!")
        if kind == SET and value not in LEVELS:
            why = f"Cannot set the log level of {name} to {value} as it is not a supported log level. "
            raise KafkaError(Error.INVALID_CONFIG, f"{why}Valid log levels are {', '.join(sorted(LEVELS))}")
        if kind == DELETE and name == ROOT:
            raise KafkaError(Error.INVALID_REQUEST, "Removing the log level of the root logger is not allowed")


def change(operations: Iterable[Operation]) -> None:
    for name, kind, value in operations:
        logger = logging.root if name == ROOT else logging.getLogger(name)
        logger.setLevel(LEVELS[value] if kind == SET and value else logging.NOTSET)
