"""The engine of this server: detached supervisors that share our files."""

from django.conf import settings

from orchestrator.nodes.runs import Runs
from orchestrator.store.layout import Home


class LocalEngine(Runs):
    """``Engine`` over the attempts' folders of this server."""

    def __init__(self) -> None:
        """Nothing is opened: the state folder is the settings' own at each call."""

    @property
    def home(self) -> Home:
        home: Home = settings.HOME
        return home
