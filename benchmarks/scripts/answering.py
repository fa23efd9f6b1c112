"""A program of a service: answers on its socket after a fixed time, one request after the other."""

import os
import socketserver
import sys
import time
from http.server import BaseHTTPRequestHandler

ANSWERS_IN_S = float(sys.argv[1]) if len(sys.argv) > 1 else 0.05


class Here(BaseHTTPRequestHandler):
    """Any path."""

    def do_GET(self) -> None:
        time.sleep(ANSWERS_IN_S)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def address_string(self) -> str:
        return "Berth"

    def log_message(self, *_: object) -> None:
        """Nothing: the log is not what is measured."""


class Server(socketserver.UnixStreamServer):
    request_queue_size = 256


if __name__ == "__main__":
    Server(os.environ["BERTH_SOCKET"], Here).serve_forever()
