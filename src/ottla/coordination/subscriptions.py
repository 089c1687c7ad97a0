"""Which topics a regular expression stands for (KIP-848: `subscribed_topic_regex`).

Clients send the expression, and the broker evaluates it. It comes from outside and is matched against the name of every
topic, so it must not cost more than the length of both: RE2, as in Apache Kafka (there: RE2/J), never Python's `re`, where a
few characters can stall the node for ever. A topic matches if its whole name does; internal topics are no exception.

Linear is not yet short: RE2 may have to look at every instruction of its program for every character of a name. So there are
bounds on the expression, on its program, and on one name, and an `Evaluation` goes on in slices, between which others have
their turn. What is more than the bounds allow is refused. Captures are not worked out: nobody asks for them, and a thousand
of them cost five thousand times as much.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from ottla.wire.errors import Error, KafkaError

# Room for an alternation of 200 names of 40 characters.
EXPRESSION_CHARS_MAX = 10_000
# Classes of Unicode (\p, \P): each is a list of hundreds of ranges, and takes as long to read as hundreds of characters.
UNICODE_CLASSES_MAX = 50
# What RE2 may take for one expression. More would let it remember more of what it has worked out.
MEMORY_BYTES = 2 * 1024 * 1024
# In RE2's instructions. The alternation above has 10,000 if all of its characters are dots.
PROGRAM_MAX = 20_000
# Work is counted in instructions looked at for a character, of which one takes a few nanoseconds if RE2 must look at all.
# A name of 249 characters, the longest that a topic may have, stays below this with every program; with a longer id of a
# transaction the expression is refused if it does not.
NAME_WORK_MAX = 5_000_000
SLICE_WORK = 2_500_000
# What a name takes at least, and reading an expression, per character.
WORK_PER_NAME = 1_000
WORK_PER_CHAR = 250

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
    """INVALID_REGULAR_EXPRESSION unless it can be evaluated, for the names of topics at least."""
    _compiled(regex)


def matching(regex: str, names: Iterable[str]) -> frozenset[str]:
    """The names that match as a whole, all at once: for few names."""
    evaluation = Evaluation([regex], names)
    while not evaluation.go_on():
        pass
    return evaluation.found[regex]


class Evaluation:
    """What some expressions stand for, worked out slice by slice. It is over when `go_on` says so."""

    def __init__(self, regexes: Collection[str], names: Iterable[str]) -> None:
        self.found: dict[str, frozenset[str]] = {}
        self._regexes, self._names = list(regexes), names
        self._steps = self._work()

    def go_on(self) -> bool:
        """Do a slice of it; whether that was the last."""
        left = SLICE_WORK
        for work in self._steps:
            left -= work
            if left <= 0:
                return False
        return True

    def _work(self) -> Iterator[int]:
        """Yields what each step has cost. An expression that another release accepted and we cannot read matches none."""
        names = list(self._names)
        for regex in self._regexes:
            pattern, matched = _readable(regex), []
            yield WORK_PER_CHAR * min(len(regex), EXPRESSION_CHARS_MAX)
            for name in names if pattern is not None else ():
                work = pattern.programsize * len(name)
                if work > NAME_WORK_MAX:
                    raise _too_large()
                if pattern.fullmatch(name):
                    matched.append(name)
                yield WORK_PER_NAME + work
            self.found[regex] = frozenset(matched)


def _readable(regex: str) -> Any:
    try:
        return _compiled(regex)
    except KafkaError:
        return None


def _compiled(regex: str) -> Any:
    import re2  # it takes a while, and most nodes never see an expression

    if len(regex) > EXPRESSION_CHARS_MAX or regex.count("\\p") + regex.count("\\P") > UNICODE_CLASSES_MAX:
        raise _too_large()
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MEMORY_BYTES
    try:
        pattern = re2.compile(regex, options=options)
    except re2.error as error:
        raise KafkaError(
            Error.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {_reason(error)}.",
        )
    finally:
        re2.purge()  # or it keeps the last 128, with all that they have worked out
    if pattern.programsize > PROGRAM_MAX:
        raise _too_large()
    return pattern


def _too_large() -> KafkaError:
    return KafkaError(Error.INVALID_REGULAR_EXPRESSION, "SubscribedTopicRegex is too large to be evaluated.")


def _reason(error: Exception) -> str:
    said = error.args[0] if error.args else error
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    what, _, _ = text.partition(": ")
    return WORDS.get(what, what)
