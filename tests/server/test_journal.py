"""The journal: one record is one line, whatever a client calls itself."""

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.server import journal
from ottla.server.journal import facts, safe, set_up

log = logging.getLogger("ottla.log")


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("ottla")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level, ours.level = before
    logging.captureWarnings(False)


def written(json_too: bool = False, level: str = "info") -> io.StringIO:
    """Nobody else is to hear of it: what pytest keeps for its reports must be text that can be sent."""
    stream = io.StringIO()
    set_up(json=json_too, level=level, stream=stream)
    logging.getLogger().handlers[:-1] = []
    return stream


def test_a_line_that_people_can_read():
    stream = written()
    log.info("recovered %s", "orders-0", extra=facts(segments=3, note="two words"))
    day, line = stream.getvalue().splitlines()
    assert re.fullmatch(r"-- \d{4}-\d\d-\d\d .*", day)
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} INFO  log       recovered orders-0 segments=3 note='two words'", line)


def test_the_date_stands_only_where_it_changes():
    stream = written()
    log.info("one")
    log.warning("two")
    assert len(stream.getvalue().splitlines()) == 3
    assert " WARN  log " in stream.getvalue()


def test_a_line_for_machines():
    stream = written(json_too=True)
    log.info("recovered %s", "orders-0", extra=facts(segments=3, level="odd", path=object))
    record = json.loads(stream.getvalue())
    assert list(record)[:4] == ["time", "level", "room", "message"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["time"])
    assert (record["level"], record["room"], record["message"]) == ("info", "log", "recovered orders-0")
    assert (record["segments"], record["level_"]) == (3, "odd")


@pytest.mark.parametrize("json_too", [False, True])
@given(name=st.text() | st.text(alphabet="\n\r\x1b[31m\u2028\u202e\x85\x00\ud800\\"))
def test_a_name_chosen_by_a_client_stays_on_one_line(json_too: bool, name: str):
    """Group ids and client ids may be any string: they must not forge records, colour terminals or turn text around."""
    stream = written(json_too)
    log.warning("client %s left", name, extra=facts(client_id=name))
    lines = [line for line in stream.getvalue().splitlines() if not line.startswith("-- ")]
    assert len(lines) == 1
    assert stream.getvalue().count("\n") == (1 if json_too else 2)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]", stream.getvalue())
    stream.getvalue().encode()


def test_a_forged_record_is_visible_as_such():
    stream = written()
    log.info("client %s connected", "x\n17:00:00.000 ERROR auth      admin logged in")
    assert "x\\n17:00:00.000 ERROR" in stream.getvalue()


def test_a_traceback_cannot_pass_for_records():
    stream = written()
    try:
        raise ValueError("bad name\n17:00:00.000 ERROR auth      admin logged in")
    except ValueError:
        log.exception("refused")
    _, first, *rest = stream.getvalue().splitlines()
    assert first.endswith("refused") and len(rest) >= 4
    assert all(line.startswith("    | ") for line in rest)


def test_a_traceback_for_machines_is_part_of_the_record():
    stream = written(json_too=True)
    try:
        raise ValueError("bad")
    except ValueError:
        log.exception("refused")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["traceback"][-1] == "ValueError: bad"


def test_long_texts_are_cut():
    text = safe("x" * 100_000)
    assert len(text) < 5000 and "more characters" in text


def test_levels():
    stream = written(level="warning")
    log.info("not this")
    log.warning("this")
    assert "not this" not in stream.getvalue() and "this" in stream.getvalue()
    with pytest.raises(ValueError, match="debug, info"):
        set_up(level="loud")


def test_libraries_are_heard_when_they_warn():
    stream = written(level="debug")
    logging.getLogger("asyncio").debug("chatter")
    logging.getLogger("asyncio").warning("trouble")
    assert "chatter" not in stream.getvalue() and "trouble" in stream.getvalue()


def test_setting_up_again_replaces_the_first():
    first, second = written(), written()
    log.info("hello")
    assert first.getvalue() == "" and "hello" in second.getvalue()


def test_a_flood_of_one_kind_is_cut_and_counted():
    """A client that causes the same warning ten thousand times must fill neither the disk nor the terminal."""
    stream = written()
    record = log.makeRecord("ottla.log", logging.WARNING, "here.py", 7, "odd frame from %s", ("c",), None)
    for number in range(1000):
        record.created = number / 1000
        logging.getLogger("ottla.log").handle(logging.makeLogRecord(dict(record.__dict__)))
    log.warning("something else")
    later = logging.makeLogRecord({**record.__dict__, "created": 11.0})
    logging.getLogger("ottla.log").handle(later)
    text = stream.getvalue()
    assert text.count("odd frame") == journal.BURST_MAX + 1
    assert "something else" in text and "odd frame from c (950 more like this were not written)" in text


def test_a_closed_terminal_does_not_hurt(capsys: pytest.CaptureFixture[str]):
    stream = written()
    stream.close()
    log.info("into the void")
    assert capsys.readouterr().err == ""
