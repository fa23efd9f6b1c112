"""Who asks: nobody, and people with as much right as a token of theirs says."""

import json
import subprocess
import sys

from tests.system.server import REPOSITORY, Server

WHO = ("anonymous", "reader", "submitter", "admin")
_MAKE = """
import json, sys
from django.contrib.auth import get_user_model
from orchestrator.people import tokens
from orchestrator.models import Scope
User = get_user_model()
ada = User.objects.filter(username="ada").first() or User.objects.create_user("ada")
root = User.objects.get(username="root")
User.objects.filter(pk__in=[ada.pk, root.pk]).update(is_active=True)
made = {"reader": (ada, Scope.READ), "submitter": (ada, Scope.WRITE), "admin": (root, Scope.ADMIN)}
sys.stdout.write(json.dumps({
    name: tokens.issue(user, name=f"fuzz {name}", scope=scope)[1] for name, (user, scope) in made.items()
}))
"""


def headers_of_people(server: Server) -> dict[str, dict[str, str]]:
    """The headers that each of ``WHO`` sends."""
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "-v", "0", "-c", _MAKE],
        cwd=REPOSITORY,
        env=server.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    tokens = json.loads(done.stdout)
    return {name: {"Authorization": f"Token {tokens[name]}"} if name in tokens else {} for name in WHO}
