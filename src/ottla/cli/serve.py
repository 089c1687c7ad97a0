"""ottla serve: start a node. Settings have Kafka's names, from a file, from flags, or both."""

from __future__ import annotations

import argparse
import gc
from pathlib import Path

from ottla.cli.mistakes import Mistake
from ottla.cli.options import pairs

EXAMPLES = """examples:
  ottla serve                                            a node on localhost:9092, data in ./ottla-data
  ottla serve --data /var/lib/ottla --listen 0.0.0.0:9092 --set advertised.listeners=PLAINTEXT://broker.example:9092
  ottla serve --set num.partitions=6 --metrics-port 9404 --log-json
  ottla serve server.properties                          with the settings file of an Apache Kafka broker

A directory that is new is made ready on the spot; the next start goes on with it."""

PORT_MAX = 65535
LOG_LEVELS = ("debug", "info", "warning", "error")


def arguments(parser: argparse.ArgumentParser) -> None:
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
    properties = settings(args)
    gc.disable()  # until the node runs: what is loaded now stays, and to look for garbage in it takes time
    from ottla.server.process import Options, serve_forever

    options = Options(metrics_port=args.metrics_port, log_json=args.log_json, log_level=args.log_level)
    return serve_forever(properties, options)


def settings(args: argparse.Namespace) -> dict[str, str]:
    """Kafka's names and values: those of the file, or our own for a single node, and flags on top."""
    if args.metrics_port is not None and not 0 <= args.metrics_port <= PORT_MAX:
        raise Mistake(f"--metrics-port {args.metrics_port}: a port is between 0 and {PORT_MAX}")
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
    return properties | chosen


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
