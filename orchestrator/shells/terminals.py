"""Terminals of an SSH connection: a pseudo-terminal of the sandbox, with a shell or a command in it."""

import asyncio
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Mapping, Sequence

import asyncssh

_PIECE_BYTES = 1 << 16
_LAST_OUTPUT_S = 0.5  # a program left in the background keeps the terminal open
_RESET = (signal.SIGPIPE, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)


async def run(
    process: "asyncssh.SSHServerProcess[bytes]", words: Sequence[str], environment: Mapping[str, str]
) -> int:
    """Run a program in a terminal of the client's size; returns its exit code, negative for a signal.

    Raises:
        OSError: there is no terminal, or the program cannot be started.
    """
    master, slave = os.openpty()
    try:
        name = os.ttyname(slave)
        _resize(master, process.term_size)
        # The first terminal that the leader of a session opens becomes its controlling terminal.
        pid = os.posix_spawn(
            words[0],
            list(words),
            dict(environment),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, name, os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, 0, 2),
            ],
            setsid=True,
            setsigdef=_RESET,
        )
    except OSError:
        os.close(master)
        raise
    finally:
        os.close(slave)
    reader, writer = await _streams(master)
    tasks = [
        asyncio.create_task(_to_program(process, master, writer, pid)),
        asyncio.create_task(_to_client(process, reader)),
        asyncio.create_task(_hang_up(process, pid)),
    ]
    try:
        code = await _wait(pid)
        await asyncio.wait(tasks[1:2], timeout=_LAST_OUTPUT_S)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()
    return code


async def _streams(master: int) -> tuple[asyncio.StreamReader, asyncio.WriteTransport]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    copy = os.dup(master)
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(master, "rb", buffering=0)
    )
    writer, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(copy, "wb", buffering=0))
    return reader, writer


async def _to_program(
    process: "asyncssh.SSHServerProcess[bytes]", master: int, writer: asyncio.WriteTransport, pid: int
) -> None:
    while True:
        try:
            data = await process.stdin.read(_PIECE_BYTES)
        except asyncssh.TerminalSizeChanged as change:
            _resize(master, change.term_size)
        except asyncssh.SignalReceived as received:
            if hasattr(signal, f"SIG{received.signal}"):
                os.killpg(pid, getattr(signal, f"SIG{received.signal}"))
        except asyncssh.BreakReceived:
            continue
        else:
            if not data:
                return
            writer.write(data)


async def _to_client(process: "asyncssh.SSHServerProcess[bytes]", reader: asyncio.StreamReader) -> None:
    try:
        while data := await reader.read(_PIECE_BYTES):
            process.stdout.write(data)
            await process.stdout.drain()
    except OSError:  # EIO: nobody has the terminal open any more
        return


async def _hang_up(process: "asyncssh.SSHServerProcess[bytes]", pid: int) -> None:
    """Tell the program once the client has closed its terminal."""
    await process.wait_closed()
    os.killpg(pid, signal.SIGHUP)


async def _wait(pid: int) -> int:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    process = os.pidfd_open(pid)
    loop.add_reader(process, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process)
        os.close(process)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _resize(master: int, size: tuple[int, int, int, int]) -> None:
    columns, rows, width_px, height_px = size
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, width_px, height_px))
