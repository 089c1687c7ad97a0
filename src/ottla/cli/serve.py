"""ottla serve: start a node. Settings have Kafka's names, from a file, from flags, or both."""

from __future__ import annotations

import argparse
import gc
import sys
from functools import partial
from pathlib import Path

from ottla.cli.mistakes import Mistake
from ottla.cli.options import pairs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ottla.cli.several import Member, Wish

EXAMPLES = """examples:
  ottla serve                                            a node on localhost:9092, data in ./ottla-data
  ottla serve --data /var/lib/ottla --listen 0.0.0.0:9092 --set advertised.listeners=PLAINTEXT://broker.example:9092
  ottla serve --set num.partitions=6 --metrics-port 9404 --log-json
  ottla serve server.properties                          with the settings file of an Apache Kafka broker
  ottla serve --brokers 3                                a cluster: three nodes on ports 9092, 9094 and 9096

A directory that is new is made ready on the spot; the next start goes on with it."""

PORT_MAX = 65535
LISTEN, DATA = "localhost:9092", "./ottla-data"
LOG_LEVELS = ("debug", "info", "warning", "error")


def arguments(parser: argparse.ArgumentParser) -> None:
    node_arguments(parser)
    parser.add_argument(
        "--brokers",
        type=int,
        metavar="N",
        help="run N nodes as one cluster on this host; each next one listens two ports higher. Nodes of other hosts cannot "
        "join it: for several hosts give each node a server.properties, with broker.rack the same on one host",
    )
    parser.add_argument("--supervised", type=int, help=argparse.SUPPRESS)  # by whom: the number of a socket


def node_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="server.properties", help="settings, as Apache Kafka has them")
    parser.add_argument("-d", "--data", action="append", metavar="DIR", help="where data lives; repeatable (log.dirs)")
    parser.add_argument(
        "-l", "--listen", action="append", metavar="HOST:PORT", help="where clients connect; repeatable (listeners)"
    )
    parser.add_argument("--set", action="append", metavar="NAME=VALUE", help="a setting by Kafka's name; repeatable")
    parser.add_argument(
        "--metrics-port", type=int, metavar="PORT", help="serve /metrics, /live and /ready by HTTP on this port"
    )
    parser.add_argument("--log-json", action="store_true", help="write the log as JSON lines")
    parser.add_argument("--log-level", choices=LOG_LEVELS, default="info")


def run(args: argparse.Namespace) -> int:
    if args.brokers is not None:
        return _run_several(args)
    properties = settings(args)
    gc.disable()  # until the node runs: what is loaded now stays, and to look for garbage in it takes time
    from ottla.server.process import Options, serve_forever

    options = Options(metrics_port=args.metrics_port, log_json=args.log_json, log_level=args.log_level)
    if args.supervised is None:
        return serve_forever(properties, options)
    from ottla.cli.supervisor import supervised

    return serve_forever(properties, options, supervised(args.supervised))


def _check_single(properties: dict[str, str]) -> None:
    """A directory of nodes would pass for one of a node, in which `node-1` is the first partition of a topic."""
    for directory in properties.get("log.dirs", properties.get("log.dir", "")).split(","):
        if directory and (Path(directory.strip()) / "cluster.properties").exists():
            raise Mistake(f"{directory} holds a cluster: start it with --brokers, or choose another --data")


def _run_several(args: argparse.Namespace) -> int:
    _check_metrics_port(args)
    from ottla.cli import several, supervisor

    wish = _wish(args)
    several.check_free(wish)
    members = several.prepare(wish)
    commands = [(member.node_id, member.is_controller, _command(args, member)) for member in members]
    addresses = ",".join(member.address for member in members)
    welcome = f"{len(members)} nodes serve {addresses}, with their data in {members[0].file.parent}; Ctrl-C stops them"
    return supervisor.run(commands, welcome, partial(several.mend, wish), as_json=args.log_json)


def _wish(args: argparse.Namespace) -> Wish:
    from ottla.cli.several import Wish

    if args.file is not None:
        raise Mistake("--brokers makes the settings of its nodes itself: give settings for all of them with --set")
    if len(args.data or ()) > 1 or len(args.listen or ()) > 1:
        raise Mistake("--brokers: one --data, in which each node has a directory, and one --listen, for the first node")
    host, _, port = _address((args.listen or [LISTEN])[0]).rpartition(":")
    return Wish(Path((args.data or [DATA])[0]), args.brokers, host, int(port), pairs(args.set, "--set"))


def _command(args: argparse.Namespace, member: Member) -> list[str]:
    command = [sys.executable, "-m", "ottla", "serve", str(member.file), "--log-level", args.log_level]
    if args.log_json:
        command.append("--log-json")
    if args.metrics_port is not None:
        command += ["--metrics-port", str(args.metrics_port and args.metrics_port + member.node_id - 1)]
    return command


def _check_metrics_port(args: argparse.Namespace) -> None:
    if args.metrics_port is not None and not 0 <= args.metrics_port <= PORT_MAX:
        raise Mistake(f"--metrics-port {args.metrics_port}: a port is between 0 and {PORT_MAX}")


def settings(args: argparse.Namespace) -> dict[str, str]:
    """Kafka's names and values: those of the file, or our own for a single node, and flags on top."""
    _check_metrics_port(args)
    from ottla.config import read_properties, single_node_defaults

    if args.file is None:
        properties = single_node_defaults()
    else:
        properties = read_properties(Path(args.file).read_text("utf-8", "replace"))
    if args.data:
        properties.pop("log.dir", None)
        properties["log.dirs"] = ",".join(args.data)
    if args.listen:
        properties["listeners"] = _listeners(args.listen, properties)
        _map_protocols(properties, len(args.listen))
        properties.pop("advertised.listeners", None)
    chosen = pairs(args.set, "--set")
    if "listeners" in chosen:
        properties.pop("ottla.controller.port.fallback", None)  # whoever writes down a port wants that one
    properties |= chosen
    _check_single(properties)
    return properties


def _listeners(addresses: list[str], properties: dict[str, str]) -> str:
    """The addresses as listeners; those of the controller stay as they are."""
    controllers = {name.strip() for name in properties.get("controller.listener.names", "").split(",")}
    kept = [
        listener.strip()
        for listener in properties.get("listeners", "").split(",")
        if listener.strip() and listener.strip().partition("://")[0] in controllers
    ]
    return ",".join([f"{_name(i)}://{_address(text)}" for i, text in enumerate(addresses)] + kept)


def _name(number: int) -> str:
    """Each listener needs a name of its own."""
    return "PLAINTEXT" if number == 0 else f"PLAINTEXT_{number + 1}"


def _map_protocols(properties: dict[str, str], count: int) -> None:
    if count == 1:
        return
    names = [_name(i) for i in range(count)]
    names += [name.strip() for name in properties.get("controller.listener.names", "").split(",") if name.strip()]
    properties["listener.security.protocol.map"] = ",".join(f"{name}:PLAINTEXT" for name in names)


def _address(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > PORT_MAX:
        raise Mistake(f"--listen {text!r}: write HOST:PORT, for example localhost:9092 or [::1]:9092")
    return f"{host}:{port}"
