"""What a sink tells somebody to do, in the words of whoever set it up: options of a DataFrame, or the file of a pipeline.

The same sink is used by both, and only whoever calls it knows which: so he says it, with the option `advice`.
"""

from __future__ import annotations

from typing import NamedTuple


class Advice(NamedTuple):
    """`{}` is the id of a query, or the name of the sink."""

    renamed: str
    two_queries: str
    accept: str
    fenced: str
    at_least_once: str


OPTIONS = Advice(
    renamed="Was the sinkId (or the topic it comes from) changed",
    two_queries="If two queries write to one topic, give each its own sinkId.",
    accept="add .option('acceptCheckpoint', '{}')",
    fenced=(
        "another query writes with the sinkId '{}', or this one was started a second time: only the one that came last may "
        "write. Give each query a sinkId of its own."
    ),
    at_least_once=".option('delivery', 'at-least-once')",
)
FILE = Advice(
    renamed="Was the name of the pipeline or of the sink changed",
    two_queries="If another pipeline has the same name, give one of them another 'name:'.",
    accept="write 'options: {{acceptCheckpoint: {}}}' at this sink",
    fenced=(
        "another pipeline writes as '{}', or this one was started a second time elsewhere: only the one that came last may "
        "write. Give each pipeline another 'name:'."
    ),
    at_least_once="'delivery: at-least-once' at this sink",
)
BY_NAME = {"options": OPTIONS, "file": FILE}
