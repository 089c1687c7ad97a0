"""Why a query ended, in one line; and whether it is worth starting again.

Spark wraps what happened into its own words twice, and what Python said is somewhere in the middle of a trace. What cannot
get better by waiting (a mistake in the file, a record that does not fit, a checkpoint that does not belong to the output)
ends the pipeline at once. Everything else is taken for weather: a broker that moves, an executor that dies, a database that
restarts.
"""

from __future__ import annotations

import re

FATAL = (
    "BadOption",
    "DataLoss",
    "committing.Refused",
    "committing.Fenced",
    "codecs.DoesNotFit",
    "WrongPipeline",
    "needs.Missing",
    "AnalysisException",
    "PySparkTypeError",
    "PySparkValueError",
    "USER_RAISED_EXCEPTION",
    "UNRESOLVED_",
    "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
    "STATE_STORE_SCHEMA",
    "CHECKPOINT_",
    "DATA_SOURCE_NOT_FOUND",
    "does not support Update mode",
    "does not support Complete mode",
    "SyntaxError",
    "NameError",
    "AttributeError",
    "ImportError",
    "ModuleNotFoundError",
    "UndefinedTable",
    "UndefinedColumn",
    "InvalidPassword",
    "ClassNotFoundException",
    "No suitable driver",
)
# The last line of a traceback: the name of a class, and what it says.
SAID = re.compile(r"^(?:[\w.]+\.)?(\w+): (.+)$")
SAID_IN_FULL = ("RuntimeError", "PySparkRuntimeError", "SinkError", "DoesNotFit")
CALLING = re.compile(r"^An error occurred while calling \S+\n: (?:[\w.$]+: )?")
STREAM_FAILED = re.compile(r"^\[STREAM_FAILED\] .*? terminated with exception: ", re.DOTALL)
CODE = re.compile(r"^\[[A-Z_.]+\] ")
# Behind this stands the plan of the query, in which any word may be.
PLAN = "=== Streaming Query ==="
SAYS_NOTHING = "Exception thrown in awaitResult:"
SQLSTATE = re.compile(r"\.?\s*SQLSTATE: \w+")
LENGTH_MAX = 700


def text_of(error: object) -> str:
    """What happened, without the plan; where Spark says nothing itself, in the words of what led to it."""
    text = str(error).split(PLAN)[0]
    while text.strip().endswith(SAYS_NOTHING) and (error := getattr(error, "_cause", None)) is not None:
        text = str(error).split(PLAN)[0]
    return text


def is_fatal(text: str) -> bool:
    return any(sign in text for sign in FATAL)


def first_lines(error: Exception) -> str:
    """What Spark says of a frame it cannot make, without the plan and the trace that follow it."""
    text = str(error).split("\n\n")[0].split("JVM stacktrace")[0].split(";\n")[0]
    return " ".join(SQLSTATE.sub("", text).split())


def cause(text: str) -> str:
    """What happened, without the traces: what Python said last, or else what Spark said first."""
    said = _python_said(text) or _spark_said(text)
    return said if len(said) <= LENGTH_MAX else said[: LENGTH_MAX - 3] + "..."


def _python_said(text: str) -> str:
    found = ""
    inside = False
    for line in text.splitlines():
        if "Traceback (most recent call last)" in line:
            inside = True
        elif inside and line and not line[0].isspace():
            inside = False
            if match := SAID.match(line):
                found = match[2] if match[1] in SAID_IN_FULL else line.strip()
    return " ".join(found.split())


def _spark_said(text: str) -> str:
    text = STREAM_FAILED.sub("", CALLING.sub("", text.strip()))
    first = text.split("\n\n")[0].split("SQLSTATE")[0].splitlines() or [""]
    return CODE.sub("", " ".join(first[0].split()))
