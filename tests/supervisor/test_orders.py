"""Orders to a supervisor."""

import subprocess
import sys
from pathlib import Path

from orchestrator.supervisor.linux.processes import identify
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.orders import OrderBook, StopOrder, order_stop
from orchestrator.supervisor.protocol.records import write_record
from tests.waiting import PATIENCE_S

# Waits for its children as a supervisor does, but far longer.
WAITS = """
import signal
signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGCHLD})
print("waits", flush=True)
print("woken" if signal.sigtimedwait({signal.SIGCHLD}, 3600) else "late", flush=True)
"""


def test_an_order_wakes_the_supervisor_that_waits_for_its_children(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path)
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as supervisor:
        try:
            assert supervisor.stdout is not None
            assert supervisor.stdout.readline() == "waits\n"
            identity = identify(supervisor.pid)
            assert identity is not None
            write_record(folder.supervisor, dict(identity.to_record()))
            order_stop(folder, "preempt", 30.0)
            output, _ = supervisor.communicate(timeout=PATIENCE_S)
            assert output == "woken\n"
        finally:
            supervisor.kill()


def test_an_order_to_a_supervisor_that_is_not_there_yet_waits_for_it(tmp_path: Path) -> None:
    folder = AttemptFolder(tmp_path)
    order_stop(folder, "preempt", 30.0)
    (order,) = OrderBook(folder).new()
    assert isinstance(order, StopOrder)
    assert order.reason == "preempt"
