"""The command `ottla`: one verb per file.

Only the file of the verb that was asked for is loaded, and it loads the client when it runs, so that help and mistakes
answer at once, and that Ctrl-C finds somebody who understands it while the rest is loaded. What goes wrong is told in one
line on standard error that says what to do; a traceback means a defect.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from ottla import __version__
from ottla.cli.interrupted import INTERRUPTED, end_if_interrupted, fall_silent
from ottla.cli.mistakes import Mistake, explain

TYPE_CHECKING = False  # as in `typing`, which takes longer to load than this file
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from types import ModuleType

VERBS = {
    "serve": "start a node",
    "demo": "start a node, a shop that writes to it, and a pipeline on Spark that counts",
    "topic": "create, list, describe, alter and delete topics",
    "config": "show and change settings of topics, brokers, groups, users and more",
    "group": "list, describe, reset and delete consumer groups and their offsets",
    "transaction": "list and describe transactions, find those that hang, and abort them",
    "offsets": "show where partitions begin and end, and trim them",
    "produce": "write records, one per line of input",
    "consume": "read records, one line of JSON each",
    "perf": "measure how fast records go in and out",
    "pipeline": "run Spark over topics: sources, steps and sinks from a file",
    "log": "look into the files of a data directory, and check them",
    "cluster": "show brokers, versions, features, quorum and disk space; change features, elect leaders, forget brokers",
    "doctor": "find out what is wrong between this machine and a broker, and what to do",
    "completion": "print a script that lets your shell complete these commands",
}

USAGE = "usage: ottla VERB [options]\n\n{verbs}\n\nHelp for one verb, with examples: ottla VERB --help"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    verb = arguments[0] if arguments else "--help"
    if verb in ("-h", "--help", "help"):
        print(_usage())
        return 0 if arguments else 2
    if verb == "--version":
        print(f"ottla {__version__}")
        return 0
    if verb not in VERBS:
        print(f"ottla: there is no verb {verb!r}{_suggestion(verb)}\n{_usage()}", file=sys.stderr)
        return 2
    return guarded(lambda: _run(verb, arguments[1:]))


def _run(verb: str, arguments: Sequence[str]) -> int:
    module = import_module(f"ottla.cli.{verb}")
    code: int = module.run(parser_of(verb, module).parse_args(arguments))
    return code


def _usage() -> str:
    width = max(map(len, VERBS))
    return USAGE.format(verbs="\n".join(f"  {verb:{width}}  {what}" for verb, what in VERBS.items()))


def _suggestion(verb: str) -> str:
    from ottla.cli.parsing import suggestion

    return suggestion(verb, VERBS)


def parser_of(verb: str, module: ModuleType) -> argparse.ArgumentParser:
    import argparse

    from ottla.cli.parsing import Parser

    parser = Parser(
        prog=f"ottla {verb}",
        description=f"{VERBS[verb][0].upper()}{VERBS[verb][1:]}.",
        epilog=module.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.arguments(parser)
    return parser


def guarded(run: Callable[[], int], name: str = "ottla: ", mistake_code: int = 2) -> int:
    """Run a verb; turn what may go wrong into one line, led by the program's name, and an exit code."""
    before, sys.unraisablehook = sys.unraisablehook, end_if_interrupted
    try:
        code = run()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        fall_silent()
        _end_at_once_if_told_again()
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left: fine, but Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        line = explain(error)
        if line is None:
            raise
        print(f"{name}{line}", file=sys.stderr)
        return mistake_code if isinstance(error, Mistake) else 1
    finally:
        if sys.unraisablehook is end_if_interrupted:
            sys.unraisablehook = before


def _end_at_once_if_told_again() -> None:
    """Threads that still wait for a disk are waited for; a second Ctrl-C ends that without a word."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
