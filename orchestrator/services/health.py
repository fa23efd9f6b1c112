"""Whether a replica is ready: it takes connections on its socket, and answers its health path where it has one."""

import http.client

from orchestrator.sessions.proxy.upstream import NotListening, connect
from orchestrator.supervisor.protocol.folder import AttemptFolder

ANSWERS_WITHIN_S = 2.0


def is_ready(folder: AttemptFolder, path: str) -> bool:
    """Ask the replica of this attempt; waits for up to ``ANSWERS_WITHIN_S``."""
    try:
        connection = connect(folder)
    except NotListening:
        return False
    with connection:
        if not path:
            return True
        connection.settimeout(ANSWERS_WITHIN_S)
        asking = http.client.HTTPConnection("service", timeout=ANSWERS_WITHIN_S)
        asking.sock = connection
        try:
            asking.request("GET", path, headers={"Connection": "close"})
            return 200 <= asking.getresponse().status < 300
        except (OSError, http.client.HTTPException):
            return False
