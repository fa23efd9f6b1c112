"""The connection to a session's program, by its socket in the attempt's folder."""

import asyncio
import os
import socket
import stat
import time

from orchestrator.supervisor.protocol.folder import AttemptFolder

AGAIN_S, LONGEST_PAUSE_S = 0.02, 0.5  # between two attempts to connect


class NotListening(Exception):
    """The program has not opened its socket, or takes no connection now."""


class QueueFull(NotListening):
    """The program listens, but accepts more slowly than connections come."""


async def reach(folder: AttemptFolder, within_s: float) -> socket.socket:
    """A connection to the program of this attempt, for which a program that has its hands full gets time.

    Raises:
        NotListening: as ``connect``; QueueFull: all the time.
    """
    until_s, pause_s = time.monotonic() + within_s, AGAIN_S
    while True:
        try:
            return connect(folder)
        except QueueFull:
            if time.monotonic() >= until_s:
                raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def connect(folder: AttemptFolder) -> socket.socket:
    """A connection to the program of this attempt.

    The program can put anything at that path, so links are not followed: they could lead to Redis or to the socket
    of another person's session.

    Raises:
        NotListening: there is no socket, or nobody accepts there.
        QueueFull: as many connections wait as the program lets.
    """
    try:
        fd = os.open(folder.session_socket, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise NotListening(str(error)) from error
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise NotListening("what is there is no socket")
        return _connected(f"/proc/self/fd/{fd}")  # the socket that was looked at, whatever its name is now
    finally:
        os.close(fd)


def _connected(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.setblocking(False)
    try:
        connection.connect(path)
    except BlockingIOError as error:
        connection.close()
        raise QueueFull(str(error)) from error
    except OSError as error:
        connection.close()
        raise NotListening(str(error)) from error
    return connection
