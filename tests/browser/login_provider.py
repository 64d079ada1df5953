"""A small OpenID Connect provider: whoever comes says who they are, and is believed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlparse

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT = "senseapp-test"
PEOPLE = {"ann": "Ann Example", "bob": "Bob Example"}


class _Handler(BaseHTTPRequestHandler):
    server: _Provider

    def do_GET(self) -> None:
        asked = urlparse(self.path)
        query = {name: values[0] for name, values in parse_qs(asked.query).items()}
        if asked.path == "/.well-known/openid-configuration":
            self._json(self.server.metadata())
        elif asked.path == "/keys":
            self._json({"keys": [self.server.key.as_dict(private=False)]})
        elif asked.path == "/authorize":
            self._page(_links(query))
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        sent = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self._json(self.server.token(sent["code"][0]))

    def _json(self, value: Any) -> None:
        self._send(json.dumps(value).encode(), "application/json")

    def _page(self, text: str) -> None:
        self._send(text.encode(), "text/html")

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: Any) -> None:
        """Say nothing."""


def _links(query: dict[str, str]) -> str:
    """Return a page with a link for each person; the code they bring back says who they are."""
    found = []
    for who in PEOPLE:
        back = urlencode({"code": f"{who} {query['nonce']}", "state": query["state"]})
        found.append(f'<a href="{query["redirect_uri"]}?{back}">{who}</a>')
    return "<br>".join(found)


class _Provider(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_address[1]}"

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    def token(self, code: str) -> dict[str, Any]:
        who, nonce = code.split(" ")
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 600, "nonce": nonce}
        claims |= {"sub": f"subject-{who}", "name": PEOPLE[who], "email": "one-mailbox@example.com"}
        signed = jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.key)
        return {"access_token": "unused", "token_type": "Bearer", "expires_in": 600, "id_token": signed}


@contextmanager
def login_provider() -> Iterator[str]:
    """Serve a provider in a thread, and yield its address."""
    with _Provider() as provider:
        threading.Thread(target=provider.serve_forever, daemon=True).start()
        yield provider.url
        provider.shutdown()


def secrets_for(provider: str, app: str) -> str:
    """Return what Streamlit's ``secrets.toml`` holds to log in there."""
    return "\n".join(
        (
            "[auth]",
            f'redirect_uri = "{app}/oauth2callback"',
            'cookie_secret = "a secret of this test alone, and long enough"',
            f'client_id = "{CLIENT}"',
            'client_secret = "unused"',
            f'server_metadata_url = "{provider}/.well-known/openid-configuration"',
        )
    )
