"""The ASGI application: pages and REST through Django, the websocket through Channels."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orchestrator.server.settings")

import django
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings

CONNECTIONS = 20  # of one web process; PostgreSQL allows 100 in all by default
WAIT_FOR_ONE_S = 10.0
LONGEST_CONNECTION_S = 60


def keep_connections() -> None:
    """Use connections for more than one request: opening one costs 2 ms of a processor with SQLite.

    With PostgreSQL the threads share a few: as many requests at once must not take as many connections.
    """
    database = settings.DATABASES["default"]
    if database["ENGINE"] == "django.db.backends.sqlite3":
        database.update(CONN_MAX_AGE=LONGEST_CONNECTION_S)
    if database["ENGINE"] == "django.db.backends.postgresql":
        pool = {"min_size": 1, "max_size": CONNECTIONS, "timeout": WAIT_FOR_ONE_S}
        database.update(CONN_MAX_AGE=0, OPTIONS={"pool": pool})


keep_connections()
django.setup(set_prefix=False)  # loads the models; the consumers need them

from dashboard.live.polling import WithPolling  # noqa: E402  # after Django is set up
from dashboard.urls import websocket_urlpatterns  # noqa: E402  # likewise
from orchestrator.api.http.agents_door import AgentsDoor  # noqa: E402  # likewise
from orchestrator.api.http.connections import BodyLimit, Departures, DjangoInOneCall  # noqa: E402  # likewise
from orchestrator.server.sessions_port import SessionsPort  # noqa: E402  # likewise
from orchestrator.services.door import ServicesDoor  # noqa: E402  # likewise

application = ProtocolTypeRouter(
    {
        "http": ServicesDoor(WithPolling(BodyLimit(AgentsDoor(Departures(DjangoInOneCall()))))),
        "websocket": URLRouter(websocket_urlpatterns),
        "lifespan": SessionsPort(),
    }
)
