"""Options as jopt-simple reads them, and the words it uses when they are wrong."""

from __future__ import annotations

import pytest

from ottla.cli.kafka.options import Failed, Options, Parser, flag, run, takes

PARSER = Parser(
    "This tool counts things.",
    takes("topic", "The topic to count in.", "topic"),
    takes("count", "How often.", "number", kind="Integer", default=3),
    takes("names", "Several names.", separator=","),
    takes("decoder", "A class, or the usual one.", is_optional=True),
    takes(("b", "bootstrap-server"), "The servers.", "host:port"),
    flag("all", "Count all of them."),
)


def parsed(*words: str) -> Options:
    return PARSER.parse(words)


def refused(*words: str) -> str:
    with pytest.raises(Failed) as failure:
        PARSER.parse(words)
    return str(failure.value)


def test_values_stand_behind_a_blank_or_an_equals_sign() -> None:
    assert parsed("--topic", "a").value("topic") == "a"
    assert parsed("--topic=a=b").value("topic") == "a=b"
    assert parsed("-topic", "a").value("topic") == "a"
    assert parsed("-b", "x:1").value("bootstrap-server") == "x:1"


def test_an_option_takes_the_next_word_whatever_it_looks_like() -> None:
    found = parsed("--topic", "--all", "--decoder", "--all")
    assert (found.value("topic"), found.has("all"), found.value("decoder")) == ("--all", True, None)


def test_lists_and_repeated_options() -> None:
    assert parsed("--names", "a,b", "--names", "c").values("names") == ["a", "b", "c"]
    with pytest.raises(Failed, match="Found multiple arguments for option topic, but you asked for only one"):
        parsed("--topic", "a", "--topic", "b").value("topic")


def test_numbers_and_defaults() -> None:
    assert parsed().number("count") == 3
    assert parsed("--count", "-4").number("count") == -4
    for wrong in ("x", "1_000", " 1", str(1 << 31)):
        with pytest.raises(Failed, match=f"Cannot parse argument '{wrong}' of option count"):
            parsed("--count", wrong).number("count")


def test_what_is_not_an_option() -> None:
    assert refused("--topics", "a") == "topics is not a recognized option"
    assert refused("--top", "a") == "top is not a recognized option"
    assert refused("-x") == "x is not a recognized option"
    assert refused("--topic") == "Option topic requires an argument"
    assert parsed("a", "--all", "--", "--topic").others == ["a", "--topic"]


def test_usage_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    """The text goes to standard error and the code is 1, for --help too, as Kafka's tools do it."""

    def body(options: Options) -> int:
        options.require("topic")
        options.forbid("topic", "all")
        return 7

    assert run(PARSER, ["--version"], body) == 0
    assert capsys.readouterr().out == "4.3.1\n"
    assert run(PARSER, ["--topic", "a"], body) == 7
    first_lines = []
    for words in ([], ["--help"], ["--all"], ["--all", "--topic", "x"]):
        assert run(PARSER, words, body) == 1
        said = capsys.readouterr()
        assert said.out == "" and "--count <Integer: number>" in said.err
        first_lines.append(said.err.splitlines()[0])
    what = "This tool counts things."
    refusals = ['Missing required argument "[topic]"', 'Option "[topic]" can\'t be used with option "[all]"']
    assert first_lines == [what, what, *refusals]


def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(PARSER, ["--foo"], lambda options: 0) == 1
    assert capsys.readouterr().err == "foo is not a recognized option\n"
