"""A process that reads devices on request, so that it can be started with the NVML stub.

One word a line on stdin (``inventory``, ``read``), one JSON answer a line on stdout.
"""

import json
import sys
import time
from dataclasses import asdict

from orchestrator.devices import DriverUnavailable, Holder, open_devices


def main() -> None:
    devices = open_devices(sys.argv[1])
    holders = [Holder(**holder) for holder in json.loads(sys.argv[2])]
    for line in sys.stdin:
        began = time.monotonic()
        try:
            found = devices.inventory() if line.strip() == "inventory" else devices.read(holders)
            answer: dict[str, object] = {"rows": [asdict(row) for row in found]}
        except DriverUnavailable as error:
            answer = {"unavailable": str(error)}
        took_s = time.monotonic() - began
        answer |= {
            "kind": devices.kind,
            "problem": devices.problem,
            "dropped": devices.dropped,
            "took_s": took_s,
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    devices.close()


if __name__ == "__main__":
    main()
