"""Build an environment on another server: ``python -m orchestrator.jobs.environments.elsewhere REQUEST``.

The file REQUEST has a JSON object: the lock of the first server, where its packages come from, and the file to answer in.
The state folder is that of the node; there is no database.
"""

import json
import os
import secrets
import sys
from pathlib import Path

import django

from orchestrator.supervisor.protocol.records import write_record


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    answer = Path(request["answer"])
    try:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orchestrator.server.settings")
        django.setup()
        key = _build(request["key"], request["lock"], list(request["sources"]))
    except Exception as error:  # whatever it is, the first server has to know
        write_record(answer, {"why": " ".join(str(error).split())[:2000] or type(error).__name__})
        raise
    write_record(answer, {"key": key})
    _compile(key)


def _build(name: str, lock: str, sources: list[str]) -> str:
    from django.conf import settings

    from orchestrator.jobs.environments import building

    places = settings.HOME.environments
    folder = places.work / f"{name[:12]}-{secrets.token_hex(4)}"
    log = places.root / "logs" / f"{name}.log"
    for path in (log.parent, places.cache, folder):
        path.mkdir(parents=True, exist_ok=True)
    try:
        return building.build({"lines": sources}, lock, folder, log, lambda _: None).key
    finally:
        building.clear(folder)


def _compile(key: str) -> None:
    from django.conf import settings

    from orchestrator.jobs.environments import bytecode

    bytecode.compile_modules(settings.HOME.environments.built(key))


if __name__ == "__main__":
    main()
