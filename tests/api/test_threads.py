"""The threads that requests run on: one for each at a time, used again, ended when there are too many."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from asgiref.sync import sync_to_async

from orchestrator.api.http.threads import KeptThreads

LONG_S = 60
Found = TypeVar("Found")


async def serve(threads: KeptThreads, request: Callable[[], Found]) -> Found:
    async with threads.one():
        return await sync_to_async(request)()


def run(work: Coroutine[Any, Any, None]) -> None:
    async def within_limit() -> None:
        await asyncio.wait_for(work, LONG_S)

    asyncio.run(within_limit())


def test_requests_that_follow_each_other_share_a_thread():
    async def two() -> None:
        threads = KeptThreads()
        assert await serve(threads, threading.get_ident) == await serve(threads, threading.get_ident)

    run(two())


def test_requests_at_one_time_have_a_thread_each():
    async def together() -> None:
        threads, meet = KeptThreads(), threading.Barrier(3)

        def meet_others() -> int:
            meet.wait(LONG_S)  # would never be left if two of them shared a thread
            return threading.get_ident()

        found = await asyncio.gather(*(serve(threads, meet_others) for _ in range(3)))
        assert len(set(found)) == 3

    run(together())


def test_calls_of_one_request_run_on_one_thread():
    async def one() -> None:
        async with KeptThreads().one():
            first = await sync_to_async(threading.get_ident)()
            assert await sync_to_async(threading.get_ident)() == first

    run(one())


def test_threads_beyond_those_that_are_kept_end():
    async def many() -> None:
        threads, meet = KeptThreads(most_idle=1), threading.Barrier(3)

        def meet_others() -> threading.Thread:
            meet.wait(LONG_S)
            return threading.current_thread()

        found = await asyncio.gather(*(serve(threads, meet_others) for _ in range(3)))
        kept = await serve(threads, threading.current_thread)
        over = [thread for thread in found if thread is not kept]
        assert len(over) == 2
        for thread in over:
            await asyncio.to_thread(thread.join, LONG_S)
            assert not thread.is_alive()

    run(many())


def test_a_request_that_was_given_up_leaves_its_thread_to_no_other():
    async def given_up() -> None:
        threads, go_on, began = KeptThreads(), threading.Event(), threading.Event()
        names: list[int] = []

        def work() -> None:
            names.append(threading.get_ident())
            began.set()
            go_on.wait(LONG_S)

        async def left() -> None:
            async with threads.one():
                # Twice cancelled, as by a client that leaves a server that stops: nobody waits for the call any more.
                view = asyncio.create_task(sync_to_async(work)())
                await asyncio.to_thread(began.wait, LONG_S)
                view.cancel()
                await asyncio.sleep(0)
                view.cancel()

        await left()
        other = await serve(threads, threading.get_ident)
        go_on.set()
        assert other not in names

    run(given_up())
