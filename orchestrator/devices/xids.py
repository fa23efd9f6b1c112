"""Resolutions for errors that a GPU's driver reports by number (Xid).

The resolutions follow NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors, immediate action for Ampere and newer).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Resolution(StrEnum):
    PROGRAM = "program"  # nearly always a fault of the program; the GPU is fine
    NOTE = "note"  # no action
    RESTART = "restart"  # contained: jobs on the GPU restart, the GPU is fine
    RESET = "reset"  # the GPU must not be used before a reset
    SUPPORT = "support"  # ... or before somebody has checked the hardware


@dataclass(frozen=True, slots=True)
class Xid:
    number: int
    resolution: Resolution
    what: str

    @property
    def sentence(self) -> str:
        """What happened and what to do, without the device."""
        return f"Xid {self.number}: {self.what}. {self.advice}"

    @property
    def advice(self) -> str:
        """What becomes of the device, and what to do."""
        return _ADVICE[self.resolution]


_ADVICE: Mapping[Resolution, str] = {
    Resolution.PROGRAM: "This is nearly always a fault of the program; the GPU stays in use.",
    Resolution.NOTE: "Nothing is stopped; if it happens again, have the GPU checked.",
    Resolution.RESTART: "It was contained; the job restarts, the GPU stays in use.",
    Resolution.RESET: "It is out of use until it is reset (nvidia-smi --gpu-reset) and marked as working again.",
    Resolution.SUPPORT: "It is out of use until somebody has checked the hardware and marked it as working again.",
}
_KNOWN: Mapping[int, tuple[Resolution, str]] = {
    13: (Resolution.PROGRAM, "the graphics engine met an exception, such as an access out of bounds"),
    31: (Resolution.PROGRAM, "a memory page fault, an access to an address that is not mapped"),
    43: (Resolution.PROGRAM, "a program's channel stopped after an error of its own"),
    45: (Resolution.PROGRAM, "a program's work was removed after it ended or failed"),
    46: (Resolution.RESET, "the GPU stopped processing"),
    48: (Resolution.RESET, "a memory error that could not be corrected (double bit)"),
    61: (Resolution.RESET, "its internal controller stopped at a breakpoint"),
    62: (Resolution.RESET, "its internal controller halted"),
    63: (Resolution.NOTE, "a bad memory row was marked to be replaced at the next reset"),
    64: (Resolution.RESET, "a bad memory row could not be replaced"),
    68: (Resolution.PROGRAM, "the video engine met an exception"),
    74: (Resolution.RESET, "an error of an NVLink"),
    79: (Resolution.SUPPORT, "the GPU fell off the bus"),
    92: (Resolution.NOTE, "many memory errors, all corrected"),
    94: (Resolution.RESTART, "a memory error that hit one program only"),
    95: (Resolution.RESET, "a memory error that may have hit everybody on the GPU"),
    109: (Resolution.RESET, "it did not switch between programs in time"),
    119: (Resolution.RESET, "its system processor (GSP) did not answer in time"),
    120: (Resolution.RESET, "its system processor (GSP) failed"),
    140: (Resolution.RESET, "a memory error that was not recovered from"),
}


def explain(number: int) -> Xid:
    """Look up an error; unknown numbers need no action."""
    resolution, what = _KNOWN.get(number, (Resolution.NOTE, "an error that is not in Berth's table"))
    return Xid(number, resolution, what)
