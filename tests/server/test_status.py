"""What an operator is told of the server on this machine."""

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO

import pytest
from django.core.management import call_command

from orchestrator.management.commands.status import NOT_RUNNING, ask
from tests.system.server import free_port


class Stranger(BaseHTTPRequestHandler):
    """A program of somebody else on Berth's port."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<h1>Printer</h1>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.django_db(transaction=True)
@pytest.mark.filterwarnings("ignore:No directory at")  # it serves no static files
def test_a_running_server_tells_what_of_it_answers(live_server):
    told = ask("127.0.0.1", live_server.thread.port)

    assert told["status"] == "not_ready"  # only the web part of it runs here
    assert told["dependencies"]["database"]["state"] == "ok"
    assert told["dependencies"]["agent"]["state"] == "failing"


def test_another_program_on_the_port_is_not_taken_for_berth():
    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        told = ask("127.0.0.1", server.server_port)
        server.shutdown()

    assert told["status"] == NOT_RUNNING


@pytest.mark.django_db
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_server_that_does_not_run_is_told_with_the_way_to_start_it(settings, options):
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, port=free_port())
    said = StringIO()

    with pytest.raises(SystemExit) as ended:
        call_command("status", *options, stdout=said)

    assert ended.value.code == 1
    if options:
        assert json.loads(said.getvalue())["status"] == NOT_RUNNING
    else:
        assert "Start it with `make up`" in said.getvalue()
