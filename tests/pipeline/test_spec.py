"""A pipeline file is read as a whole; each mistake is told with its line and what to write. No Spark is needed for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.pipeline.files.nodes import WrongPipeline
from ottla.pipeline.files.spec import Deduplicate, Spec, Watermark, read_file, read_object

GOOD = """\
name: page-views
bootstrap: broker:9092
trigger: 5s
quarantine: bad
spark:
  spark.sql.shuffle.partitions: 4
sources:
  views:
    topic: page-views
    format: json
    schema: {user: STRING, page: STRING, at: TIMESTAMP}
    watermark: {column: at, delay: 10 minutes}
  users:
    topics: [users, guests]
    as: table
    format: csv
    schema: name STRING
    quarantine: bad-users
  countries:
    files: countries.csv
    format: csv
steps:
  once:
    sql: SELECT * FROM views
    deduplicate: {columns: [user, at]}
  enriched:
    python: steps.py:enrich
    arguments: {limit: 3}
sinks:
  out:
    from: enriched
    topic: enriched
    key: user
    mode: update
  archive:
    from: once
    parquet: archive
    partition_by: page
    trigger: available-now
"""


def read(tmp_path: Path, text: str) -> Spec:
    file = tmp_path / "p.yml"
    file.write_text(text)
    return read_file(file)


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(WrongPipeline) as caught:
        read(tmp_path, text)
    return [line.replace(f"{tmp_path}/", "") for line in caught.value.problems]


def test_everything_a_file_can_say(tmp_path):
    spec = read(tmp_path, GOOD)
    views, users, countries = spec.sources
    assert (spec.name, spec.bootstrap, spec.settings) == (
        "page-views",
        "broker:9092",
        {"spark.sql.shuffle.partitions": "4"},
    )
    assert (views.kind, views.target, views.key, views.start) == ("topic", "page-views", "string", "earliest")
    assert views.format.schema == "`user` STRING, `page` STRING, `at` TIMESTAMP"
    assert views.watermark == Watermark("at", "10 minutes")
    assert (views.as_table, users.as_table, countries.as_table) == (False, True, True)
    assert (views.quarantine, users.quarantine, users.target) == ("bad", "bad-users", "users,guests")
    assert spec.steps[0].deduplicate == Deduplicate(("user", "at"), True)
    assert spec.steps[1].arguments == {"limit": 3}
    out, archive = spec.sinks
    assert (out.of, out.kind, out.target) == ("enriched", "topic", "enriched")
    assert (out.mode, out.delivery) == ("update", "exactly-once")
    assert (out.trigger, archive.trigger, archive.partition_by) == ("5 seconds", "available-now", ("page",))
    assert spec.path("archive") == str(tmp_path / "archive")
    assert spec.path("s3a://bucket/x") == "s3a://bucket/x"


def test_options_of_a_quarantine(tmp_path):
    """For all of them, and for one."""
    text = "quarantine_options: {kafka.compression.type: lz4, delivery: at-least-once}\n" + GOOD
    spec = read(tmp_path, text.replace("quarantine: bad-users", "quarantine_options: {delivery: exactly-once}"))
    views, users, countries = spec.sources
    assert views.quarantine_options == {"kafka.compression.type": "lz4", "delivery": "at-least-once"}
    assert users.quarantine_options == {"kafka.compression.type": "lz4", "delivery": "exactly-once"}
    assert countries.quarantine_options == {}


def test_the_same_words_from_python(tmp_path):
    import yaml

    made = read_object(yaml.safe_load(GOOD), tmp_path)
    file = read(tmp_path, GOOD)
    assert [source.format.schema for source in made.sources] == [source.format.schema for source in file.sources]
    assert [sink.trigger for sink in made.sinks] == [sink.trigger for sink in file.sinks]


def test_from_python_a_mistake_names_the_place(tmp_path):
    with pytest.raises(
        WrongPipeline, match=r"sources\.views\.formt: source 'views' has no 'formt': did you mean 'format'"
    ):
        read_object({"sources": {"views": {"topic": "v", "formt": "raw"}}, "sinks": {}}, tmp_path)


@pytest.mark.parametrize(
    ("was", "becomes", "told"),
    [
        ("trigger: 5s", "triger: 5s", "p.yml:3: a pipeline has no 'triger': did you mean 'trigger'?"),
        ("format: json", "format: jsn", "p.yml:10: 'format' cannot be 'jsn': did you mean 'json'?"),
        ("trigger: 5s", "trigger: soon", "p.yml:3: 'trigger' cannot be 'soon': write 5 seconds, available-now or once"),
        ("    from: once", "    form: once", "p.yml:36: sink 'archive' has no 'form': did you mean 'from'?"),
        ("    from: once", "    from: onec", "p.yml:35: there is no source or step 'onec': did you mean 'once'?"),
        (
            "  once:",
            "  views:",
            "p.yml:23: 'views' is taken by p.yml:8: SQL knows sources and steps by name; choose another",
        ),
        ("    parquet: archive", "    delta: archive", "p.yml:37: Delta Lake has no release for this version of Spark"),
        ("    parquet: archive", "    iceberg: archive", "p.yml:37: Iceberg has no runtime for this version of Spark"),
        (
            "    topic: page-views",
            "    topc: page-views",
            "p.yml:8: source 'views' does not say what it is: write topic: NAME",
        ),
        ("delay: 10 minutes", "delay: long", "p.yml:12: 'delay' is not a length of time: 'long'; write 5 seconds"),
        ("steps.py:enrich", "enrich", "p.yml:27: 'python' must name a file or module and a function: steps.py:enrich"),
        (
            "    mode: update",
            "    mode: upsert",
            "p.yml:34: 'mode' cannot be 'upsert': write one of append, update, complete",
        ),
        ("    schema: name STRING\n", "", "p.yml:13: source 'users' needs 'schema': write its columns, such as"),
        (
            "quarantine: bad\n",
            "quarantine: ${NOT_SET_AT_ALL}\n",
            "p.yml:4: the variable NOT_SET_AT_ALL is not set: export it",
        ),
        ("name: page-views", "name: a\nname: b", "p.yml:2: 'name' is there twice: the first is at p.yml:1"),
        ("    sql: SELECT * FROM views", "    sql: [a]", "p.yml:24: 'sql' must be one value, not a list"),
        ("sinks:", "sinks: [", "is not YAML"),
        ("    parquet: archive", "    mode: update\n    parquet: archive", "p.yml:37: files are only added to: write"),
        ("trigger: 5s", "trigger: continuous", "only for its own connectors: write a length of time"),
        (
            "    as: table",
            "    as: table\n    watermark: {column: at, delay: 1s}",
            "p.yml:16: a table has no watermark",
        ),
        (
            "  countries:",
            "  sales: {topic: s, format: avro, schema: s.avsc, writers: {first: s.avsc}}\n  countries:",
            "p.yml:19: 'writers' are schemas by their numbers in the registry: write {1: first.avsc}",
        ),
        (
            "  countries:",
            "  sales: {topic: s, format: avro, schema: s.avsc, skip_bytes: 5, writers: {1: s.avsc}}\n  countries:",
            "p.yml:19: 'writers' read the header that 'skip_bytes' passes over: keep one of them",
        ),
        ("  countries:", "  beats:\n    rate: often\n  countries:", "p.yml:20: 'rate' makes a stream of so many rows"),
        (
            "delay: 10 minutes",
            "dalay: 10 minutes",
            "p.yml:12: 'watermark' of source 'views' has no 'dalay': did you mean 'delay'?",
        ),
    ],
)
def test_each_mistake_says_where_and_what_to_write(tmp_path, was, becomes, told):
    """Unknown words are answered with what was probably meant."""
    assert was in GOOD
    found = problems(tmp_path, GOOD.replace(was, becomes, 1))
    assert any(told in line for line in found), found


def test_all_mistakes_are_told_at_once(tmp_path):
    text = (
        GOOD.replace("trigger: 5s", "triger: 5s")
        .replace("format: json", "format: jsn")
        .replace("mode: update", "mode: x")
    )
    assert len(problems(tmp_path, text)) == 3


@pytest.mark.parametrize("place", ["archive", "./archive/"])
def test_two_streams_into_one_directory_are_refused(tmp_path, place):
    more = GOOD + f"  again:\n    from: views\n    parquet: {place}\n"
    assert problems(tmp_path, more) == [f"p.yml:40: 'archive' writes to {place} too: UNION them in a step"]


DATABASE = """\
  rows:
    from: once
    jdbc: jdbc:postgresql://db:5432/shop?password=secret
    table: shop.rows
    keys: [user, page]
    mode: update
    user: shop
    password: secret
"""


def test_a_database(tmp_path):
    sink = read(tmp_path, GOOD + DATABASE).sinks[-1]
    assert (sink.table, sink.keys, sink.user, sink.password) == ("shop.rows", ("user", "page"), "shop", "secret")
    assert sink.into == "postgresql shop.rows", "what is shown and logged has no password"


@pytest.mark.parametrize(
    ("was", "becomes", "told"),
    [
        (
            "jdbc: jdbc:postgresql:",
            "jdbc: postgresql:",
            "p.yml:42: an address of JDBC begins with jdbc: write jdbc:post",
        ),
        ("    table: shop.rows\n", "", "sink 'rows' needs 'table': write the table to write to"),
        ("    keys: [user, page]\n", "", "p.yml:44: 'mode: update' needs 'keys': write the columns of the table's"),
        ("    table:", "    partition_by: user\n    table:", "sink 'rows' has no 'partition_by'"),
    ],
)
def test_mistakes_about_a_database(tmp_path, was, becomes, told):
    assert was in DATABASE
    found = problems(tmp_path, GOOD + DATABASE.replace(was, becomes, 1))
    assert any(told in line for line in found), found


def test_an_empty_file_and_one_without_anything(tmp_path):
    assert "is empty: `ottla pipeline init`" in problems(tmp_path, "")[0]
    assert "must be a mapping" in problems(tmp_path, "hello")[0]
    assert any("needs 'sources'" in line for line in problems(tmp_path, "name: x"))


def test_the_environment_fills_in(tmp_path, monkeypatch):
    monkeypatch.setenv("OTTLA_TEST_TOPIC", "from-outside")
    spec = read(tmp_path, GOOD.replace("topic: enriched", "topic: ${OTTLA_TEST_TOPIC}-${OTTLA_TEST_NOT:-x}"))
    assert spec.sinks[0].target == "from-outside-x"
