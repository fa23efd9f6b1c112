"""The process of all links: connects to Ray, and starts a link for each node that joins."""

import logging
import threading
from functools import partial

from django.conf import settings

from orchestrator.links.node_link import NodeLink
from orchestrator.nodes.ray_cluster import Address, Cluster, NoRay
from orchestrator.nodes.reports import read_reports

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


def serve(address: Address, stopping: threading.Event) -> None:
    """Serve every node until ``stopping``.

    Raises:
        NoRay: it is not installed, or refuses our token.
    """
    cluster = _connected(address, stopping)
    if cluster is None:
        return
    links: dict[str, NodeLink] = {}
    while not stopping.is_set():
        # A node that reported once has attempts to look after, whether Ray knows it now or not.
        names = {*cluster.names(), *(report.name for report in read_reports(settings.HOME.nodes))}
        for name in sorted(names - links.keys()):
            links[name] = NodeLink(name, partial(cluster.port, name), stopping)
            links[name].start()
        stopping.wait(LOOK_EVERY_S)
    for link in links.values():
        link.join(timeout=2)
    cluster.close()


def _connected(address: Address, stopping: threading.Event) -> Cluster | None:
    """The connection to Ray, whose head takes some seconds to start; None if we are to stop before."""
    said = ""
    while not stopping.is_set():
        try:
            return Cluster(address, settings.HOME.nodes / "token")
        except NoRay as error:
            if str(error) != said:
                said = str(error)
                logger.warning("%s", said)
            stopping.wait(LOOK_EVERY_S)
    return None
