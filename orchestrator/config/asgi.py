"""The ASGI application: pages and REST through Django, the websocket through Channels."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orchestrator.config.settings")

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application

django_application = get_asgi_application()  # loads the models; the consumers need them

from dashboard.routing import WithPolling, websocket_urlpatterns  # noqa: E402  # after Django is set up
from orchestrator.api.body_limit import BodyLimit  # noqa: E402  # after Django is set up

application = ProtocolTypeRouter(
    {
        "http": WithPolling(BodyLimit(django_application)),
        "websocket": URLRouter(websocket_urlpatterns),
    }
)
