"""How many live views a person may have, and how soon they end with what they may see."""

import asyncio
import dataclasses
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
import redis
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session

from dashboard.live import consumers, feed
from dashboard.live.open_sockets import BELIEVED_S, OpenSockets
from orchestrator.live import wakeups
from orchestrator.models import PoolRight, Role
from orchestrator.people import accounts, tokens
from orchestrator.server.operation.services import redis_command

from .test_socket import socket_of

PATIENCE_S = 20

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def own_redis(home, settings, monkeypatch) -> Iterator[redis.Redis]:
    """Redis at the address that this test's settings name, and wake-ups that go there."""
    monkeypatch.setattr(wakeups._Sender, "current", None)
    home.redis.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(redis_command(settings.ENVIRONMENT), stdout=subprocess.DEVNULL) as server:
        until_s = time.monotonic() + PATIENCE_S
        with redis.Redis.from_url(settings.ENVIRONMENT.redis_url) as client:
            while time.monotonic() < until_s:
                with suppress(redis.ConnectionError):
                    client.ping()
                    break
                time.sleep(0.02)
            yield client
        server.terminate()


async def heard(client: redis.Redis) -> None:
    """Wait until the feed listens."""
    async with asyncio.timeout(PATIENCE_S):
        while not dict(await sync_to_async(client.pubsub_numsub)(wakeups.CHANNEL))[wakeups.CHANNEL.encode()]:
            await asyncio.sleep(0.02)


@pytest.fixture
def three_each(settings) -> None:
    settings.ENVIRONMENT = dataclasses.replace(settings.ENVIRONMENT, sockets_a_person=3)


async def test_one_socket_too_many_is_closed_with_a_reason_and_others_go_on(home, three_each, ada, bob):
    async with socket_of(ada) as first, socket_of(ada) as second:
        async with socket_of(ada) as third:
            for socket in (first, second, third):
                assert (await socket.frame())["type"] == "hello"
            async with socket_of(ada) as fourth:
                assert await fourth.closed_with(PATIENCE_S) == consumers.TOO_MANY
            async with socket_of(bob) as anothers:
                assert (await anothers.frame())["type"] == "hello"
        async with socket_of(ada) as again:
            assert (await again.frame())["type"] == "hello"


async def test_sockets_are_counted_over_all_processes(own_redis, three_each, ada):
    one, other = OpenSockets("one"), OpenSockets("other")

    assert await one.enter(ada.pk)
    assert await other.enter(ada.pk)
    assert await one.enter(ada.pk)
    assert not await other.enter(ada.pk)
    await one.leave(ada.pk)
    assert await other.enter(ada.pk)
    assert not await one.enter(ada.pk)


async def test_sockets_of_a_process_that_died_are_forgotten_and_of_one_that_lives_are_not(
    own_redis, three_each, ada
):
    now = 1000.0
    dead, living, asked = (OpenSockets(name, lambda: now) for name in ("dead", "living", "asked"))
    assert [await dead.enter(ada.pk), await dead.enter(ada.pk), await living.enter(ada.pk)] == [True] * 3
    assert not await asked.enter(ada.pk)

    now += BELIEVED_S + 1
    await living.tell()

    assert [await asked.enter(ada.pk) for _ in range(3)] == [True, True, False]


async def test_without_redis_a_process_counts_for_itself(home, three_each, ada):
    alone = OpenSockets("alone")

    assert [await alone.enter(ada.pk) for _ in range(4)] == [True, True, True, False]


def shut(user: User) -> None:
    accounts.set_active(user, active=False, by=user)


def save_in_the_admin(user: User) -> None:
    user.is_active = False
    user.save()


def give_another_password(user: User) -> None:
    user.set_password("another password")
    user.save(update_fields=["password"])


def sign_out(user: User) -> None:
    Session.objects.get().delete()


def make_viewer(user: User) -> None:
    accounts.set_role(user, Role.VIEWER, by=user)


def delete(user: User) -> None:
    user.delete()


@pytest.mark.parametrize(
    "end", [shut, save_in_the_admin, give_another_password, sign_out, make_viewer, delete]
)
async def test_a_socket_ends_with_what_it_was_opened_by_and_does_not_wait_for_the_next_check(
    own_redis, ada, monkeypatch, end
):
    monkeypatch.setattr(feed, "RECHECK_EVERY_S", 3600.0)
    async with socket_of(ada) as socket:
        await socket.frame()
        await heard(own_redis)
        await sync_to_async(end)(ada)
        assert await socket.closed_with(PATIENCE_S) == consumers.SIGNED_OUT


async def test_a_token_that_is_revoked_or_removed_ends_its_socket_at_once(own_redis, ada, monkeypatch):
    monkeypatch.setattr(feed, "RECHECK_EVERY_S", 3600.0)
    token, text = await sync_to_async(tokens.issue)(ada, name="cli")
    async with socket_of(origin=None, token=text) as socket:
        await socket.frame()
        await heard(own_redis)
        await sync_to_async(tokens.revoke)(token)
        assert await socket.closed_with(PATIENCE_S) == consumers.SIGNED_OUT


async def test_a_right_that_is_given_by_hand_is_noticed_at_once(own_redis, ada, make_pool, monkeypatch):
    monkeypatch.setattr(feed, "RECHECK_EVERY_S", 3600.0)
    pool = await sync_to_async(make_pool)()
    async with socket_of(ada) as socket:
        await socket.frame()
        await heard(own_redis)
        await sync_to_async(PoolRight.objects.create)(user=ada, pool=pool, right="operate")
        assert await socket.closed_with(PATIENCE_S) == consumers.SIGNED_OUT
