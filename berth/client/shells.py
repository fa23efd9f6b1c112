"""The bytes of an SSH connection into a running job, over a websocket of the server."""

import os
import sys
import threading
from contextlib import suppress
from urllib.parse import quote

import httpx
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from berth.client import Berth, BerthError, Unreachable, raise_for_status

OPENS_WITHIN_S = 60.0  # the server waits for the job's supervisor
MESSAGE_BYTES = 1 << 20
PIECE_BYTES = 1 << 16


def open_shell(berth: Berth, job_id: str) -> ClientConnection:
    """Connect to the SSH server inside a job.

    Raises:
        BerthError: the job lets nobody in, or the server does not answer.
    """
    scheme, _, rest = berth.url.partition("://")
    try:
        return connect(
            f"{'wss' if scheme == 'https' else 'ws'}://{rest}/ws/v1/jobs/{quote(job_id, safe='')}/shell",
            additional_headers={"Authorization": f"Token {berth.token}"} if berth.token else {},
            ssl=httpx.create_ssl_context() if scheme == "https" else None,
            compression=None,
            open_timeout=OPENS_WITHIN_S,
            max_size=MESSAGE_BYTES,
            user_agent_header=None,
        )
    except InvalidStatus as error:
        answer = error.response
        if not answer.body:
            raise Unreachable(
                f"{berth.url} opens no shells; is its Berth older than this command?"
            ) from error
        refused = httpx.Response(
            answer.status_code, headers=list(answer.headers.raw_items()), content=bytes(answer.body)
        )
        raise_for_status(refused, berth.url)
        raise Unreachable(f"{berth.url} did not open the connection.") from error
    except (InvalidHandshake, OSError, TimeoutError) as error:
        raise Unreachable(f"{berth.url} does not take the connection ({error}).") from error


def relay(connection: ClientConnection) -> None:
    """Pass standard input to the job, and its answers to standard output, until one side ends.

    Raises:
        BerthError: the server ended the connection and said why.
    """
    threading.Thread(target=_send, args=(connection,), daemon=True).start()
    try:
        for message in connection:
            data = message if isinstance(message, bytes) else message.encode()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
    except ConnectionClosed as error:
        reason = error.rcvd.reason if error.rcvd is not None else ""
        raise BerthError(reason or "The connection to the server broke off.") from error
    except BrokenPipeError:
        connection.close()


def _send(connection: ClientConnection) -> None:
    with suppress(ConnectionClosed, OSError):
        while data := os.read(sys.stdin.fileno(), PIECE_BYTES):
            connection.send(data)
        connection.close()
