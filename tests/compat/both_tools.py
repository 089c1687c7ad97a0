"""The same command line given to Apache's own tool and to ours; what both say, with what cannot be equal taken out."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import re
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

from apache.tools import ApacheTools, Ran

SECONDS = 60.0
# Lines on standard error that only one of them writes: Java's stack traces and its advertisement, our warnings, for which
# Apache uses a log.
ONE_SIDED = (
    "WARN New offset",
    "\tat ",
    " at [Source",
    "Caused by: ",
    "\t... ",
    "java.",
    "joptsimple.",
    "com.fasterxml.jackson.",
    "org.apache.kafka.common.errors.",
    "The consumer rebalance protocol",
)
# What Java writes in front of the message where nobody caught an exception.
THROWN = re.compile(r'^Exception in thread "main" [\w.]+: ')


class Said(NamedTuple):
    code: int
    out: list[str]
    err: list[str]


Normal = Callable[[str], str]


class Both:
    """`same("kafka-topics", "--list", ...)` runs both and compares them line by line, in any order of lines."""

    def __init__(self, apache: ApacheTools, bootstrap: str) -> None:
        self.apache = apache
        self.bootstrap = ("--bootstrap-server", bootstrap)

    def same(
        self,
        tool: str,
        *arguments: object,
        stdin: str = "",
        connects: bool = True,
        normal: Normal = str,
        sorts: bool = True,
    ) -> Said:
        """What ours said."""
        words = [*(self.bootstrap if connects else ()), *map(str, arguments)]
        theirs = said(self.apache.run(tool, *words, stdin=stdin), normal, sorts)
        mine = said(ours(tool, *words, stdin=stdin), normal, sorts)
        assert mine == theirs, f"{tool} {' '.join(words)}\n" + "\n".join(_difference(theirs, mine))
        return mine


def _difference(theirs: Said, mine: Said) -> list[str]:
    both = [[f"exit code {side.code}", *side.out, "-- standard error --", *side.err] for side in (theirs, mine)]
    return list(difflib.unified_diff(*both, "apache", "ours", lineterm="", n=1))


def said(ran: Ran, normal: Normal, sorts: bool) -> Said:
    out = [normal(line) for line in ran.out.splitlines()]
    told = (THROWN.sub("", line) for line in ran.err.splitlines())
    err = [normal(line) for line in told if line and not line.startswith(ONE_SIDED)]
    return Said(ran.code, sorted(out) if sorts else out, err)


def module_of(tool: str) -> str:
    return f"ottla.cli.kafka.{tool.removeprefix('kafka-').replace('-', '_')}"


def ours(tool: str, *arguments: str, stdin: str = "") -> Ran:
    """Ours as a process of its own where it reads standard input or writes bytes; otherwise in this one, which is faster."""
    if stdin or tool.startswith("kafka-console") or tool.endswith("perf-test"):
        return _as_process(tool, *arguments, stdin=stdin)
    out, err = io.StringIO(), io.StringIO()
    main = importlib.import_module(module_of(tool)).main
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    return Ran(code, out.getvalue(), err.getvalue())


def _as_process(tool: str, *arguments: str, stdin: str = "") -> Ran:
    program = f"import sys; from {module_of(tool)} import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], input=stdin.encode(), capture_output=True, timeout=SECONDS
    )
    return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
