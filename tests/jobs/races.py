"""Two or more threads with connections of their own, let go at the same moment."""

import threading
from collections.abc import Callable

from django.db import connections

from tests.waiting import PATIENCE_S


def race(*acts: Callable[[int], object], count: int = 1) -> list[Exception]:
    """Let every act run at once in a thread of its own, ``count`` times over; returns what they raised."""
    barrier = threading.Barrier(len(acts), timeout=PATIENCE_S)
    raised: list[Exception] = []

    def run(act: Callable[[int], object]) -> None:
        try:
            for number in range(count):
                barrier.wait()
                try:
                    act(number)
                except Exception as error:  # noqa: BLE001  # the test looks at them
                    raised.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised
