"""An HTTP endpoint of this machine that answers what it is told to: a provider's status page, or its notice."""

from __future__ import annotations

import http.server
import threading


class Endpoint:
    """Gives its `answers` (code, body) in their order, the last of them from then on; without any it hangs."""

    def __init__(self) -> None:
        """It listens from now on."""
        self.answers: list[tuple[int, bytes]] = []
        self.asked = 0
        self.hangs = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                if not outer.answers:
                    outer.hangs.wait(30)
                    return
                code, body = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                self.send_response(code)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server.server_address[1]}/pods/7"

    def end(self) -> None:
        """It listens no more."""
        self.hangs.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
