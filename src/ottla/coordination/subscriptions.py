"""Which topics a regular expression stands for (KIP-848: `subscribed_topic_regex`).

Clients send the expression, and the broker evaluates it. It comes from outside and is matched against the name of every
topic, so it must not cost more than the length of both: RE2, as in Apache Kafka (there: RE2/J), never Python's `re`, where a
few characters can stall the node for ever. A topic matches if its whole name does; internal topics are no exception.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.wire.errors import Error, KafkaError

# What RE2 says in C++ -> what it says in Java, where the same mistakes have other words.
WORDS = {
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "unexpected )": "regexp/syntax: internal error",
    "trailing \\": "trailing backslash at end of expression",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
}


def check(regex: str) -> None:
    """INVALID_REGULAR_EXPRESSION unless it can be evaluated."""
    _compiled(regex)


def matching(regex: str, topics: Iterable[str]) -> frozenset[str]:
    """The topics whose whole name matches. An expression that another release accepted and we cannot read matches none."""
    try:
        pattern = _compiled(regex)
    except KafkaError:
        return frozenset()
    return frozenset(topic for topic in topics if pattern.fullmatch(topic))


def _compiled(regex: str) -> Any:
    import re2  # it takes a while, and most nodes never see an expression

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(regex, options=options)
    except re2.error as error:
        raise KafkaError(
            Error.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {_reason(error)}.",
        )


def _reason(error: Exception) -> str:
    said = error.args[0] if error.args else error
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    what, _, _ = text.partition(": ")
    return WORDS.get(what, what)
