"""The asyncio client for code that does not await: a loop on a thread of its own, and a door into it.

Spark calls us from plain threads: the driver when it plans, a worker for each task. Both hold a `Broker` for as long as
they need one and hand it coroutines.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from ottla.client.cluster import BUDGET_SECONDS, Cluster

T = TypeVar("T")

STOP_SECONDS = 5.0


class Broker:
    """A cluster and the loop it lives on. Nothing is connected before the first coroutine asks for it."""

    def __init__(self, bootstrap: str, *, client_id: str = "ottla", budget_s: float = BUDGET_SECONDS) -> None:
        self.cluster = Cluster(bootstrap, client_id=client_id, budget_s=budget_s)
        self._loop = asyncio.new_event_loop()
        # A daemon: whoever forgets to close it can still end.
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"{client_id} broker", daemon=True)
        self._thread.start()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Do it on the loop and wait; what it raises is raised here. A caller who is interrupted stops it too."""
        under_way = self.start(coroutine)
        try:
            return under_way.result(timeout_s)
        except BaseException:
            under_way.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin it on the loop and go on: `result()` waits for it."""
        if self._loop.is_closed():
            coroutine.close()
            raise RuntimeError("this broker was closed")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Cancel what is under way, close the connections, end the thread. Closing twice does no harm."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._settle(), self._loop).result(STOP_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        self._loop.close()

    async def _settle(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self.cluster.close()
        await asyncio.sleep(0)  # transports report their end in the next turn
