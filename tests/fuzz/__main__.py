"""Made-up requests and frames against a real server; the outcome goes to benchmarks/results/fuzz.json.

python -m tests.fuzz --cases 10000 [--seed 1]
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

from benchmarks.figures import RESULTS, read_host, read_versions
from tests.chaos.campaign import write_json
from tests.fuzz.calls import call_everything
from tests.fuzz.frames import send_nonsense
from tests.fuzz.people import WHO, headers_of_people
from tests.system.server import Server, prepare_home
from tests.tools.parts import say

FRAMES = 40  # on each socket
MOST_ROUNDS = 20
# Who may do more is asked more.
EXAMPLES = {"anonymous": 4, "reader": 15, "submitter": 30, "admin": 30}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--sockets", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="berth-fuzz-") as folder:
        home = Path(folder) / "berth"
        server = Server(home, prepare_home(home), "sim:8x80GiB")
        try:
            server.start()
            outcome = fuzz(server, Path(folder), chosen.cases, chosen.sockets, chosen.seed)
        finally:
            server.clean_up()
    outcome["figures"]["took_s"] = round(time.monotonic() - began)
    record = {
        "benchmark": "fuzz",
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": read_host(),
        "versions": read_versions(),
        "seed": chosen.seed,
        **outcome,
    }
    write_json(RESULTS / "fuzz.json", record)
    say("  ".join(f"{name} {value}" for name, value in outcome["figures"].items()))
    return 1 if outcome["findings"] else 0


def fuzz(server: Server, folder: Path, cases: int, sockets: int, seed: int) -> dict[str, Any]:
    """The sockets, then rounds of calls as each person until there were enough."""
    made: Counter[str] = Counter()
    findings: list[str] = []
    codes = open_bad_sockets(server, headers_of_people(server)["submitter"], sockets, seed, findings)
    say(f"{sockets} sockets: {dict(codes)}")
    for number in range(MOST_ROUNDS):
        if made.total() >= cases:
            break
        headers = headers_of_people(server)  # an admin's call may have shut an account or ended a token
        for who in WHO:
            called = call_everything(
                server,
                headers[who],
                folder,
                examples=EXAMPLES[who],
                seed=seed + number,
                phases="fuzzing" if number else "coverage,fuzzing",
            )
            made[who] += called.cases
            say(
                f"round {number} as {who}: {called.cases} cases, {'clean' if called.is_clean else 'FINDINGS'}"
            )
            if not called.is_clean:
                findings.append(f"as {who}, seed {seed + number}: {called.report[-20_000:]}")
                say(called.report[-20_000:])
    errors = server.logs().count("Traceback")
    if errors:
        findings.append(f"{errors} tracebacks in the server's logs:\n{server.logs()}")
        say(findings[-1])
    figures = {"cases": made.total(), **{f"as_{who}": made[who] for who in WHO}, "sockets": sockets}
    return {
        "figures": {**figures, "findings": len(findings)},
        "close_codes": {str(code): count for code, count in codes.most_common()},
        "findings": findings,
    }


def open_bad_sockets(
    server: Server, headers: dict[str, str], count: int, seed: int, findings: list[str]
) -> Counter[int | None]:
    """Nonsense on many sockets, while one that does nothing wrong stays open."""
    with connect(f"ws://127.0.0.1:{server.port}/ws/v1/", additional_headers=headers) as good:
        codes = Counter(send_nonsense(server, headers, seed + number, FRAMES) for number in range(count))
        if not good.ping().wait(10):
            findings.append("a socket that did nothing wrong was not answered any more")
    if codes[1011]:
        findings.append(f"{codes[1011]} sockets were closed with 1011, an error of the server's own")
    return codes


if __name__ == "__main__":
    sys.exit(main())
