"""What the processes of a run use together, from /proc."""

from collections.abc import Iterable

from orchestrator.supervisor.processes import status_lines


class Usage:
    """Memory in bytes; of pages that several processes map, each has its own count here (see ``proportional``)."""

    __slots__ = ("anonymous_bytes", "shared_bytes", "threads")

    def __init__(self, anonymous_bytes: int = 0, shared_bytes: int = 0, threads: int = 0) -> None:
        self.anonymous_bytes = anonymous_bytes
        self.shared_bytes = shared_bytes  # of files in main memory, such as those of /dev/shm
        self.threads = threads  # a process has at least one

    def memory_bytes(self, files_bytes: int = 0) -> int:
        """All of it, where files in main memory that need not be mapped take ``files_bytes``."""
        return self.anonymous_bytes + max(self.shared_bytes, files_bytes)


def measure(pids: Iterable[int]) -> Usage:
    """One quick look, 20 us a process.

    Mapped files are left out: each rank maps the same gigabytes of libraries, and the kernel can drop them.
    """
    usage = Usage()
    for pid in pids:
        values = _numbers(status_lines(pid))
        usage.anonymous_bytes += values.get("RssAnon", 0) * 1024
        usage.shared_bytes += values.get("RssShmem", 0) * 1024
        usage.threads += values.get("Threads", 0)
    return usage


def proportional(pids: Iterable[int]) -> Usage:
    """As ``measure``, but pages that several processes map are counted once, as forked workers' are.

    The kernel walks through all pages for it, about 5 ms a GiB.  A process that does not show them counts as a whole.
    """
    usage = Usage()
    for pid in pids:
        values = _numbers(status_lines(pid))
        values |= _numbers(status_lines(pid, "smaps_rollup"))
        usage.anonymous_bytes += values.get("Pss_Anon", values.get("RssAnon", 0)) * 1024
        usage.shared_bytes += values.get("Pss_Shmem", values.get("RssShmem", 0)) * 1024
        usage.threads += values.get("Threads", 0)
    return usage


def _numbers(lines: Iterable[str]) -> dict[str, int]:
    """Lines of a name, a colon and a number."""
    rows = (line.split() for line in lines)
    return {row[0][:-1]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
