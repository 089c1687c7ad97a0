"""Apache Kafka 4.3.1 as a fixture: a combined broker and controller from Maven's jars, and the tools beside it.

There is no distribution to unpack: `mvn dependency:copy-dependencies` puts the jars next to this file, `StorageTool`
formats a directory as `format --standalone` does, and `kafka.Kafka` runs on it. The configuration is kept beside the
data directory together with both ports, because the controller's address is part of the voter set in the log.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import HOST, Server, die_with_parent, free_port

HERE = Path(__file__).resolve().parent
JARS = HERE / "jars"
JARS_39 = HERE / "jars39"
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
TOOL_SECONDS = 60.0

# The flags of Kafka's own start script, for measuring; and lighter ones that start faster, for testing.
MEASURED = (
    "-Xms1G",
    "-Xmx1G",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
LIGHT = ("-Xms128m", "-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")

SINGLE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}

LOGGING = """\
status=ERROR
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level={level}
rootLogger.appenderRef.out.ref=out
"""


class ToolFailed(AssertionError):
    """A tool ended with another code than 0; the message carries what it said."""


def why_missing(jars: Path = JARS) -> str | None:
    """Why Apache Kafka cannot be used here, or None."""
    if shutil.which("java") is None:
        return "Java is not installed"
    if not any(jars.glob("kafka-clients-*.jar")):
        pom = "pom.xml" if jars == JARS else "pom39.xml"
        return f"no jars: mvn -q -f tests/apache/{pom} dependency:copy-dependencies -DoutputDirectory={jars.name}"
    return None


def java(*arguments: str, jars: Path = JARS, flags: Sequence[str] = LIGHT, logging: Path | None = None) -> list[str]:
    """The command line of a Java program with the jars on its class path."""
    log4j = [f"-Dlog4j2.configurationFile={logging}"] if logging else []
    return ["java", *flags, *log4j, "-cp", f"{jars}/*", *arguments]


def run_tool(
    main_class: str,
    *arguments: str,
    stdin: str | bytes | None = None,
    jars: Path = JARS,
    seconds: float = TOOL_SECONDS,
    check: bool = True,
) -> str:
    """Runs one of Kafka's tools to its end; what it wrote to its standard output."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    logging = logging_file("ERROR")
    done = subprocess.run(
        java(main_class, *arguments, jars=jars, logging=logging),
        input=data or b"",
        capture_output=True,
        timeout=seconds,
        preexec_fn=die_with_parent,
    )
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if check and done.returncode != 0:
        raise ToolFailed(f"{main_class} {' '.join(arguments)} ended with {done.returncode}\n{out}\n{err}")
    return out


class Apache(Server):
    """A combined Apache Kafka node. `settings` are added to its server.properties at each start."""

    name = "apache"

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        flags: Sequence[str] = LIGHT,
        controller_port: int | None = None,
    ) -> None:
        super().__init__(directory, port)
        self.controller_port = controller_port or free_port()
        self.settings = dict(settings or {})
        self.flags = flags
        self.properties = directory.with_name(directory.name + ".properties")

    def launch(self) -> None:
        self.write_properties()
        if not (self.directory / "meta.properties").exists():
            self.format()
        super().launch()

    def command(self) -> list[str]:
        return java("kafka.Kafka", str(self.properties), flags=self.flags, logging=logging_file("WARN"))

    def format(self) -> None:
        """Prepares an empty directory as `kafka-storage format --standalone` does."""
        run_tool("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self.properties), "--standalone")

    def write_properties(self) -> None:
        self.properties.parent.mkdir(parents=True, exist_ok=True)
        controller = f"{HOST}:{self.controller_port}"
        own = {
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "controller.quorum.bootstrap.servers": controller,
            "log.dirs": str(self.directory),
        }
        lines = [f"{name}={value}" for name, value in {**SINGLE_NODE, **own, **self.settings}.items()]
        self.properties.write_text("\n".join(lines) + "\n")


def logging_file(level: str) -> Path:
    """Log4j's configuration, made on first use beside the build's other leavings."""
    path = HERE.parent.parent / ".cache" / f"log4j2-{level.lower()}.properties"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(LOGGING.format(level=level))
        temporary.replace(path)
    return path
