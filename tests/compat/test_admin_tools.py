"""Kafka's tools of 4.3.1 and ours, given the same command lines on the same state, say the same and end the same.

The command lines stand in `scripts/`, one file per subject; each leaves the node as it found it. A script is run as a whole
by Apache's tools, in one JVM, and then by ours. What cannot be equal (ids, clocks, offsets of the metadata log) is taken
out, and of Java's stack traces only the messages stay.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apache import kafka
from apache.tools import ApacheTools, Ran
from harness import HOST, Node, free_port, stop_all

pytestmark = pytest.mark.apache

SCRIPTS = Path(__file__).parent / "scripts"
# What follows the name of an exception in a stack trace is of interest, the trace is not.
TRACE = re.compile(r"\s+at .*|\s+\.\.\. [0-9]+ more|\s+Suppressed: .*")
EXCEPTION = re.compile(
    r'(?:Exception in thread "main" |Caused by: )*(?:[a-z]\w*\.)+[A-Z]\w*(?:\$\w+)*(?:Exception|Error): '
)
# Of a file that is not there Java prints the name alone; ours say what is with it, and where another one is to be had.
NO_FILE = re.compile(r"^there is no file (.*?)(?:: Kafka's own, to begin with, is .*)?$")
# kafka-features and others take their options in another way, and lay out their usage in another way.
BY_COMMANDS = ("kafka-storage", "kafka-cluster", "kafka-features", "kafka-metadata-quorum")
VOLATILE = (
    (re.compile(r"TopicId: \S+"), "TopicId: ID"),
    (re.compile(r"directory\.id=[^,}]+"), "directory.id=ID"),
    (re.compile(r"Epoch: \d+"), "Epoch: N"),
    (re.compile(r"HighWatermark:( +)\d+"), r"HighWatermark:\1N"),
    (re.compile(r"^(1 +\t\S+\t)\d+ +\t0 +\t\d+ +\t\d+ +\t"), r"\1N"),
    (re.compile(r"Bootstrap metadata: .*"), "Bootstrap metadata"),
    # Directories are looked at in the order of a hash table.
    (re.compile(r"@T/([a-z])[12]( is already formatted|/meta\.properties)"), r"@T/\1N\2"),
    # A set of options in an order that is another one in every JVM.
    (re.compile(r"\[\[config\], \[bootstrap-server\]\]"), "[[bootstrap-server], [config]]"),
)
# Apache calls the first record of every later segment a gap behind offset -1.
NO_GAP = re.compile(r"  -1 is followed by \d+")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    port, controller = free_port(), f"{HOST}:{free_port()}"
    settings = {
        "log.index.interval.bytes": "200",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{controller}",
    }
    made = Node(tmp_path_factory.mktemp("tools") / "data", port, settings)
    try:
        made.start()
        yield made
    finally:
        stop_all([made])


@pytest.fixture(scope="module")
def apache_tools() -> Iterator[ApacheTools]:
    if reason := kafka.why_missing():
        pytest.skip(reason)
    tools = ApacheTools()
    yield tools
    tools.close()


def ours(tool: str, *arguments: str) -> Ran:
    """Ours in this process: starting one for each of hundreds of lines would take a minute."""
    main = importlib.import_module(f"ottla.cli.kafka.{tool.removeprefix('kafka-').replace('-', '_')}").main
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    return Ran(code, out.getvalue(), err.getvalue())


def lines_of(name: str) -> list[str]:
    return [line for line in (SCRIPTS / f"{name}.txt").read_text().splitlines() if line and not line.startswith("#")]


def words_of(line: str, node: Node, scratch: Path) -> list[str]:
    line = line.replace("@S", "--bootstrap-server @B").replace("@B", node.address)
    line = line.replace("@C", node.settings["listeners"].rpartition("CONTROLLER://")[2])
    return shlex.split(line.replace("@D", str(node.directory)).replace("@T", str(scratch)))


def played(name: str, run: Callable[..., Ran], node: Node, scratch: Path) -> list[tuple[str, Ran]]:
    return [(line, run(*words_of(line, node, scratch))) for line in lines_of(name)]


class Line(str):
    """A line of output; `may_lack` says that it stands in a stack trace, where one message may come several times."""

    may_lack = False


def normal(text: str, scratch: Path) -> list[Line]:
    """The lines that count. A message in the trace of an exception counts as a line."""
    found = []
    for line in text.replace(str(scratch), "@T").splitlines():
        if not line.strip() or TRACE.fullmatch(line) or NO_GAP.fullmatch(line):
            continue
        plain = NO_FILE.sub(r"\1", EXCEPTION.sub("", line))
        for pattern, put in VOLATILE:
            plain = pattern.sub(put, plain)
        found.append(Line(_sorted_settings(plain)))
        found[-1].may_lack = EXCEPTION.match(line) is not None
    # Directories are formatted in the order of a hash table.
    formatting = iter(sorted(line for line in found if line.startswith("Formatting ")))
    return [Line(next(formatting)) if line.startswith("Formatting ") else line for line in found]


def _sorted_settings(line: str) -> str:
    """Apache lists the settings of a topic in the order of a hash table."""
    head, configs, tail = line.partition("\tConfigs: ")
    return head + configs + ",".join(sorted(tail.split(",")))


def complaint(ran: Ran, scratch: Path) -> list[Line]:
    """What went to standard error; of argparse4j's the message alone, with its blanks evened out."""
    found = normal(ran.err, scratch)
    message = re.search(r"error:\s+(.*?)(?:\s+Did you mean:.*)?$", "\n".join(found), re.DOTALL)
    return [Line(" ".join(message[1].split()).replace("-- ", "--"))] if message else found


def compare(line: str, theirs: Ran, mine: Ran, scratches: tuple[Path, Path]) -> list[str]:
    """What is different, in words; nothing if all is well."""
    differences = []
    if theirs.code != mine.code:
        differences.append(f"{line}: exit code {mine.code} instead of {theirs.code}")
    by_commands = line.split()[0] in BY_COMMANDS
    if not (by_commands and "usage:" in theirs.out):
        out, expected = normal(mine.out, scratches[1]), normal(theirs.out, scratches[0])
        if not _agree(out, expected):
            differences.append(f"{line}:\n{_shown(out)}\ninstead of\n{_shown(expected)}")
    told, wanted = (complaint(ran, scratch) for ran, scratch in ((mine, scratches[1]), (theirs, scratches[0])))
    if not _agree(told, wanted):
        differences.append(f"{line}: complains\n{_shown(told)}\ninstead of\n{_shown(wanted)}")
    return differences


def _agree(told: list[Line], wanted: list[Line]) -> bool:
    """The same lines in the same order, but for those of a stack trace that may be missing."""
    rest = list(told)
    for line in wanted:
        if rest and rest[0] == line:
            rest.pop(0)
        elif not line.may_lack:
            return False
    return not rest


def _shown(lines: list[Line]) -> str:
    return "\n".join(f"    {line}" for line in lines) or "    (nothing)"


def check(name: str, node: Node, tools: ApacheTools, scratches: tuple[Path, Path]) -> None:
    theirs = played(name, tools.run, node, scratches[0])
    mine = played(name, ours, node, scratches[1])
    pairs = zip(theirs, mine, strict=True)
    differences = [text for (line, a), (_, b) in pairs for text in compare(line, a, b, scratches)]
    assert not differences, "\n\n".join(differences)


@pytest.fixture
def scratches(tmp_path: Path, node: Node) -> tuple[Path, Path]:
    """A directory for Apache's tools and one for ours, with the same files in both."""
    made = (tmp_path / "theirs", tmp_path / "mine")
    for directory in made:
        directory.mkdir()
        write_files(directory, node)
    return made


def write_files(directory: Path, node: Node) -> None:
    """What the scripts name: settings, plans and lists."""
    (directory / "add.properties").write_text("segment.ms=777777\n# a comment\nretention.ms : 123\n")
    _write_settings(directory)
    partition = {"topic": "ra", "partition": 0, "replicas": [1]}
    placed = {**partition, "partition": 1, "log_dirs": [str(node.directory)]}
    plans: dict[str, object] = {
        "ra": [partition, placed],
        "ra2": [{**partition, "replicas": [1, 2]}],
        "ra3": [{**partition, "partition": 7}, {**partition, "topic": "nope", "partition": 7}],
        "ra4": [{**partition, "replicas": [1, 1]}],
        "ra5": [partition, partition],
        "ra6": [{**partition, "log_dirs": ["any", "any"]}],
        "ra8": [{**partition, "topic": "nope"}],
        "ra9": [{**placed, "log_dirs": ["/nodir"]}],
        "ra10": [{**partition, "replicas": []}],
    }
    written = {name: {"version": 1, "partitions": parts} for name, parts in plans.items()}
    election = [{"topic": "le1", "partition": 0}, {"topic": "le1", "partition": 1}]
    written |= {
        "ra7": {"version": 3},
        "le": {"partitions": election},
        "dup": {"partitions": [election[0], election[0]]},
        "bad": {"foo": 1},
        "t1": {"topics": [{"topic": "ra"}], "version": 1},
        "t2": {"topics": [{"topic": "nope"}], "version": 1},
        "t3": {"topics": [{"topic": "ra"}, {"topic": "ra"}], "version": 1},
    }
    for name, data in written.items():
        (directory / f"{name}.json").write_text(json.dumps(data))
    (directory / "none.json").write_text("")


def _write_settings(directory: Path) -> None:
    """Settings files, each with data directories of its own."""

    def settings(dirs: str, **changes: str | None) -> str:
        values = {
            "process_roles": "broker,controller",
            "node_id": "1",
            "controller_listener_names": "CONTROLLER",
            "listeners": "PLAINTEXT://127.0.0.1:19092,CONTROLLER://127.0.0.1:19093",
            "listener_security_protocol_map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller_quorum_bootstrap_servers": "127.0.0.1:19093",
            "log_dirs": f"{directory}/{dirs}1,{directory}/{dirs}2",
        } | changes
        return "".join(f"{name.replace('_', '.')}={value}\n" for name, value in values.items() if value is not None)

    fixed = {"controller_quorum_voters": "1@127.0.0.1:19093", "controller_quorum_bootstrap_servers": None}
    files = {
        "a": settings("d"),
        "v": settings("v", **fixed),
        "b": settings("b", process_roles="broker", listeners="PLAINTEXT://127.0.0.1:19092"),
        "x": settings("x"),
        "y": settings("y"),
        "z": settings("z"),
        "norole": settings("d", process_roles=None),
        "node2": settings("d", node_id="2"),
    }
    for name, text in files.items():
        (directory / f"{name}.properties").write_text(text)


def test_topics(node: Node, apache_tools: ApacheTools, scratches: tuple[Path, Path]) -> None:
    """CLI-01, CLI-02, CLI-18, CLI-19, CLI-20: made, listed, described, altered and deleted; and the usual mistakes."""
    check("topics", node, apache_tools, scratches)


def test_configs(node: Node, apache_tools: ApacheTools, scratches: tuple[Path, Path]) -> None:
    """CLI-11, CLI-18, CLI-20: by the old names of options (--entity-type) and the new ones (--topic)."""
    check("configs", node, apache_tools, scratches)


def test_cluster(node: Node, apache_tools: ApacheTools, scratches: tuple[Path, Path]) -> None:
    """CLI-15, CLI-18: versions, endpoints, features, quorum and directories."""
    for scratch in scratches:
        ours("kafka-storage", "format", "-c", str(scratch / "a.properties"), "-t", "x", "--standalone")
    shutil.copy(scratches[0] / "d1" / "meta.properties", scratches[1] / "d1" / "meta.properties")
    check("cluster", node, apache_tools, scratches)


def test_controllers(node: Node, apache_tools: ApacheTools, scratches: tuple[Path, Path]) -> None:
    """CLI-18: by --bootstrap-controller, where only controllers are known."""
    check("controllers", node, apache_tools, scratches)


def test_elections(node: Node, apache_tools: ApacheTools, scratches: tuple[Path, Path]) -> None:
    """CLI-18: kafka-leader-election.sh where every partition has its preferred leader."""
    check("elections", node, apache_tools, scratches)


def test_reassignments(node: Node, apache_tools: ApacheTools, scratches: tuple[Path, Path]) -> None:
    """CLI-18: generate, execute, verify, cancel and list, with and without throttles."""
    check("reassignments", node, apache_tools, scratches)


def test_storage(node: Node, apache_tools: ApacheTools, scratches: tuple[Path, Path]) -> None:
    """CLI-13, CLI-18: formatting, in the ways of fixed and of dynamic quorums, and looking at what is there."""
    check("storage", node, apache_tools, scratches)


def test_apache_runs_on_what_we_formatted(tmp_path: Path) -> None:
    """CLI-13: the directory that our tool made is taken by Apache Kafka, with the cluster id it was given."""
    if reason := kafka.why_missing():
        pytest.skip(reason)
    server = kafka.Apache(tmp_path / "data")
    server.write_properties()
    made = ours("kafka-storage", "format", "-c", str(server.properties), "-t", "oIcMcLSdRpCJpUo-BxwAXQ", "--standalone")
    assert made.code == 0, made.err
    try:
        server.start()
        shown = ours("kafka-cluster", "cluster-id", "--bootstrap-server", server.address)
        assert shown.out == "Cluster ID: oIcMcLSdRpCJpUo-BxwAXQ\n"
        quorum = ours("kafka-metadata-quorum", "--bootstrap-server", server.address, "describe", "--status")
        assert '"id": 1' in quorum.out and f"CONTROLLER://{HOST}:{server.controller_port}" in quorum.out
    finally:
        stop_all([server])


def test_dumps(node: Node, apache_tools: ApacheTools, scratches: tuple[Path, Path]) -> None:
    """CLI-12, CLI-17, CLI-18: everything in a data directory, as Apache's tool prints it."""
    fill(node.address)
    for scratch in scratches:
        tear(node.directory / "dumped-0", scratch / "torn")
    names = {path.name for path in (node.directory / "dumped-0").iterdir()}
    segment = {f"00000000000000000000.{suffix}" for suffix in ("index", "log", "timeindex")}
    assert names - {"leader-epoch-checkpoint"} == segment | {"partition.metadata"}
    check("dumps", node, apache_tools, scratches)


def fill(address: str) -> None:
    """Records with keys, headers and nulls, packed by every codec, and a producer that numbers its batches."""
    import struct

    from confluent_kafka import Producer

    for topic in ("dumped", "numbers"):
        # The records are years old: without this they could be gone before both tools have looked at them.
        keep = ("--config", "retention.ms=-1")
        ours("kafka-topics", "--bootstrap-server", address, "--create", "--topic", topic, *keep)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer(
            {
                "bootstrap.servers": address,
                "compression.type": codec,
                "enable.idempotence": codec == "gzip",
                "linger.ms": 50,
            }
        )
        for n in range(5):
            # Times rise: one that does not would begin a new segment.
            moment = 1_700_000_000_000 + n
            headers = [("h1", b"x"), ("h2", None)] if n == 2 else []
            key, value = None if n == 0 else f"k{n}", None if n == 1 else f"välue {n}\t" + "x" * 100
            producer.produce("dumped", key=key, value=value, partition=0, headers=headers, timestamp=moment)
        producer.flush()
    producer.produce("numbers", key=struct.pack(">i", -7), value=struct.pack(">q", 1 << 40), partition=0)
    producer.flush()


def tear(source: Path, target: Path) -> None:
    """A segment whose last batch is cut off, one whose CRC is wrong, and indexes that do not fit."""
    target.mkdir()
    data = bytearray((source / "00000000000000000000.log").read_bytes()[:-20])
    data[70] ^= 1
    (target / "00000000000000000000.log").write_bytes(data)
    (target / "00000000000000000000.index").write_bytes(bytes([0, 0, 0, 3, 0, 0, 0, 0]))
    (target / "00000000000000000000.timeindex").write_bytes(bytes(6) + b"\x09\x09" + bytes([0, 0, 0, 1]) + bytes(12))
