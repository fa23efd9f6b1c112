"""The process of all links: connects to Ray, and starts a link for each node that joins."""

import logging
import threading
from functools import partial

from django.conf import settings
from django.db import DatabaseError, close_old_connections

from orchestrator.links.gang import Gangs
from orchestrator.links.node_link import NodeLink
from orchestrator.models import LOCAL_NODE, Attempt
from orchestrator.nodes.port import LocalPort, Port
from orchestrator.nodes.ray_cluster import Address, Cluster, NoRay
from orchestrator.nodes.reports import read_reports

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
GANGS_EVERY_S = 0.2


def serve(address: Address, stopping: threading.Event) -> None:
    """Serve every node until ``stopping``.

    Raises:
        NoRay: it is not installed, or refuses our token.
    """
    cluster = _connected(address, stopping)
    if cluster is None:
        return
    links: dict[str, NodeLink] = {}
    gangs = Gangs()
    keeper = threading.Thread(target=partial(_keep, gangs, stopping), name="gangs", daemon=True)
    keeper.start()
    while not stopping.is_set():
        # A node that reported once has attempts to look after, whether Ray knows it now or not.
        names = {*cluster.names(), *(report.name for report in read_reports(settings.HOME.nodes))}
        for name in sorted(names - links.keys()):
            links[name] = NodeLink(name, partial(cluster.port, name), stopping, gangs)
            links[name].start()
        if LOCAL_NODE not in links and _is_wanted_here():
            links[LOCAL_NODE] = NodeLink(LOCAL_NODE, partial(_port_here, address.host), stopping, gangs)
            links[LOCAL_NODE].start()
        stopping.wait(LOOK_EVERY_S)
    for link in links.values():
        link.join(timeout=2)
    cluster.close()


def _is_wanted_here() -> bool:
    """Whether a run over several servers has a part on this one."""
    try:
        several = Attempt.objects.live().exclude(nodes=[]).values_list("nodes", flat=True)
        return any(LOCAL_NODE in nodes for nodes in several)
    except DatabaseError as error:
        close_old_connections()
        logger.warning("The links wait for the database: %s", error)
        return False


def _port_here(address: str) -> Port:
    """The port of this server, for its parts of runs over several; the agent reads its devices."""
    return LocalPort(
        LOCAL_NODE,
        settings.HOME.nodes / "here",
        "cpu:1",
        hidden=settings.HOME.root,
        address=address,
        environments=settings.HOME.environments.root,
    )


def _keep(gangs: Gangs, stopping: threading.Event) -> None:
    """Look after the runs over several servers, whatever single links wait for."""
    while not stopping.wait(GANGS_EVERY_S):
        for gang in gangs.live():
            try:
                gang.tend()
            except Exception:  # the thread must survive any error; the log gets the traceback
                logger.exception("Looking after %s failed; retrying", gang.folder)


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
