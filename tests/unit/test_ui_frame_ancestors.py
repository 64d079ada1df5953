"""Who may show the app in a frame: nobody, unless the server was told of origins."""

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from senseapp.app.server import serve
from senseapp.app.server.guards import SecurityHeaders
from senseapp.core.errors import InvalidSpec

SETTING = "SENSEAPP_FRAME_ANCESTORS"


def headers() -> dict[str, str]:
    return dict(TestClient(Starlette(middleware=[Middleware(SecurityHeaders)])).get("/").headers)


@pytest.mark.parametrize("given", ["", "  "])
def test_nobody_may_by_default(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, given)
    found = headers()
    assert "frame-ancestors 'none'" in found["content-security-policy"]
    assert found["x-frame-options"] == "DENY"


def test_named_origins_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "https://huggingface.co  https://*.hf.space http://127.0.0.1:9000")
    found = headers()
    policy = found["content-security-policy"].split("; ")
    assert "frame-ancestors https://huggingface.co https://*.hf.space http://127.0.0.1:9000" in policy
    assert "x-frame-options" not in found


@pytest.mark.parametrize("given", ["*", "example.org", "https://a.org; script-src *", "https://a.org/path", "'self'"])
def test_what_is_no_origin_stops_the_start(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, given)
    with pytest.raises(InvalidSpec, match="SENSEAPP_FRAME_ANCESTORS lists origins"):
        headers()
    monkeypatch.setattr(serve, "lock_home", lambda home: None)
    with pytest.raises(SystemExit, match="SENSEAPP_FRAME_ANCESTORS lists origins"):
        serve.serve([])
