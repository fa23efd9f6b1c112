"""What to do about an error that a GPU's driver reports by number (Xid).

The buckets follow NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors, immediate action for Ampere and newer).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Bucket(StrEnum):
    PROGRAM = "program"  # nearly always the program's own fault; the GPU is well
    NOTE = "note"  # nothing stops
    RESTART = "restart"  # contained: whoever ran there starts again, the GPU is well
    RESET = "reset"  # the GPU is not to be used before a reset
    SUPPORT = "support"  # ... or before somebody has looked at the hardware


@dataclass(frozen=True, slots=True)
class Xid:
    number: int
    bucket: Bucket
    what: str

    @property
    def sentence(self) -> str:
        """What happened and what to do, without the device."""
        return f"Xid {self.number}: {self.what}. {_ADVICE[self.bucket]}"


_ADVICE: Mapping[Bucket, str] = {
    Bucket.PROGRAM: "This is nearly always the program's own fault; the GPU is kept.",
    Bucket.NOTE: "Nothing is stopped; if it comes again, have the GPU looked at.",
    Bucket.RESTART: "It was contained; the job starts again, the GPU is kept.",
    Bucket.RESET: "It is out of use until it was reset (nvidia-smi --gpu-reset) and marked as working again.",
    Bucket.SUPPORT: "It is out of use until somebody has looked at the hardware and marked it as working again.",
}
_KNOWN: Mapping[int, tuple[Bucket, str]] = {
    13: (Bucket.PROGRAM, "the graphics engine met an exception, such as an access out of bounds"),
    31: (Bucket.PROGRAM, "a memory page fault, an access to an address that is not mapped"),
    43: (Bucket.PROGRAM, "a program's channel stopped after an error of its own"),
    45: (Bucket.PROGRAM, "a program's work was removed after it ended or failed"),
    46: (Bucket.RESET, "the GPU stopped processing"),
    48: (Bucket.RESET, "a memory error that could not be corrected (double bit)"),
    61: (Bucket.RESET, "its internal controller stopped at a breakpoint"),
    62: (Bucket.RESET, "its internal controller halted"),
    63: (Bucket.NOTE, "a bad memory row was marked to be replaced at the next reset"),
    64: (Bucket.RESET, "a bad memory row could not be replaced"),
    68: (Bucket.PROGRAM, "the video engine met an exception"),
    74: (Bucket.RESET, "an error of an NVLink"),
    79: (Bucket.SUPPORT, "the GPU fell off the bus"),
    92: (Bucket.NOTE, "many memory errors, all corrected"),
    94: (Bucket.RESTART, "a memory error that hit one program only"),
    95: (Bucket.RESET, "a memory error that may have hit everybody on the GPU"),
    109: (Bucket.RESET, "it did not switch between programs in time"),
    119: (Bucket.RESET, "its system processor (GSP) did not answer in time"),
    120: (Bucket.RESET, "its system processor (GSP) failed"),
    140: (Bucket.RESET, "a memory error that was not recovered from"),
}


def explain(number: int) -> Xid:
    """A number that is not in the table stops nothing."""
    bucket, what = _KNOWN.get(number, (Bucket.NOTE, "an error that is not in Berth's table"))
    return Xid(number, bucket, what)
