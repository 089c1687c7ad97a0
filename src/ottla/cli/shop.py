"""A small shop that is always open: page views and orders, for `ottla demo` to have something to count.

Visitors look at things, and some of them buy what they have just looked at. Who does what when is drawn at random.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from datetime import UTC, datetime

from ottla.client.producer import Producer

VIEWS, ORDERS = "page-views", "orders"
PRICES = {"shoes": 79.0, "hats": 25.5, "coats": 149.0, "socks": 6.9, "scarves": 19.0}
USERS = [f"user-{number}" for number in range(40)]
VIEWS_PER_SECOND = 20.0
BUYS = 0.15


class Shop:
    def __init__(self, producer: Producer, rng: random.Random | None = None) -> None:
        self._producer = producer
        self._rng = rng or random.Random()

    async def run(self) -> None:
        while True:
            await self.visit()
            await asyncio.sleep(self._rng.expovariate(VIEWS_PER_SECOND))

    async def visit(self) -> None:
        """Somebody looks at something, and perhaps buys it a little later."""
        user, item = self._rng.choice(USERS), self._rng.choice(list(PRICES))
        await self._write(VIEWS, user, page=f"/{item}")
        if self._rng.random() < BUYS:
            asyncio.get_running_loop().create_task(self._buy(user, item))

    async def _buy(self, user: str, item: str) -> None:
        await asyncio.sleep(self._rng.uniform(0.5, 5.0))
        await self._write(ORDERS, user, item=item, amount=PRICES[item] * self._rng.randint(1, 3))

    async def _write(self, topic: str, user: str, **what: object) -> None:
        at = datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds")
        await self._producer.post(topic, json.dumps({"user": user, **what, "at": at}).encode(), user.encode())
