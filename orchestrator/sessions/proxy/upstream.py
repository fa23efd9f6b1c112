"""The connection to a session's program, by its socket in the attempt's folder."""

import os
import socket
import stat

from orchestrator.supervisor.protocol.folder import AttemptFolder


class NotListening(Exception):
    """The program has not opened its socket, or takes no connection now."""


def connect(folder: AttemptFolder) -> socket.socket:
    """A connection to the program of this attempt.

    The program can put anything at that path, so links are not followed: they could lead to Redis or to the socket
    of another person's session.

    Raises:
        NotListening: there is no socket, or nobody accepts there.
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
    except OSError as error:  # refused, or the program's queue is full
        connection.close()
        raise NotListening(str(error)) from error
    return connection
