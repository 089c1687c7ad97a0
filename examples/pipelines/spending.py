"""A step with state of its own: what each customer has spent, and whether that is a lot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle


class Spending(StatefulProcessor):
    """One number for each customer. Spark keeps it in RocksDB and writes it down with each micro-batch."""

    def __init__(self, alarm_above: float) -> None:
        self.alarm_above = alarm_above

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.spent = handle.getValueState("spent", "amount DOUBLE")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = self.spent.get()[0] if self.spent.exists() else 0.0
        total = before + sum(row.amount for row in rows)
        self.spent.update((total,))
        yield Row(customer=key[0], spent=total, alarm=total > self.alarm_above)

    def close(self) -> None:
        pass


def spending(orders: DataFrame, alarm_above: float) -> DataFrame:
    columns = "customer STRING, spent DOUBLE, alarm BOOLEAN"
    return orders.groupBy("customer").transformWithState(Spending(alarm_above), columns, "Update", "none")
