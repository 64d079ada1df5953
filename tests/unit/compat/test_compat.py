"""What senseapp relies on that its libraries do not promise, where no test of a behaviour would fail without it."""

import ast
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.asynchronous import run_async

ROOT = Path(__file__).resolve().parents[3]
COMPAT = ROOT / "senseapp" / "compat"

ATTENTION = ("flash_attention", "efficient_attention", "cudnn_attention", "fused_attention_overrideable")
"""On other devices than the processor, where ``tests/unit/networks/test_macs.py`` counts the products of the others."""


@pytest.mark.parametrize("name", ATTENTION)
def test_the_first_arguments_of_attention_are_those_that_are_multiplied(name: str) -> None:
    import torch

    arguments = getattr(torch.ops.aten, f"_scaled_dot_product_{name}").default._schema.arguments
    assert [each.name for each in arguments[:3]] == ["query", "key", "value"]


def test_a_parameter_of_no_layer_has_a_name_in_torch_prunings_graph() -> None:
    import torch
    import torch_pruning

    from senseapp.compat.torch_pruning_internals import parameter_name

    class Shifted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.shift = torch.nn.Conv2d(3, 4, 1), torch.nn.Parameter(torch.zeros(1, 4, 2, 2))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.conv(images) + self.shift

    model = Shifted()
    graph = torch_pruning.DependencyGraph()
    graph.build_dependency(model, torch.zeros(1, 3, 2, 2), unwrapped_parameters=[(model.shift, 1)])
    assert parameter_name(graph, model.shift) == "shift"


def test_timm_reads_published_weights_from_a_file(tmp_path: Path) -> None:
    import timm
    import torch
    from safetensors.torch import save_file

    from senseapp.compat.vision_internals import weights_from

    model = timm.create_model("resnet10t", pretrained=False)
    expected = {name: torch.full_like(value, 0.5) for name, value in model.state_dict().items()}
    save_file(expected, tmp_path / "w.safetensors")
    read = timm.create_model("resnet10t", pretrained=True, **weights_from(str(tmp_path / "w.safetensors")))
    assert all(torch.equal(value, expected[name]) for name, value in read.state_dict().items())


def test_messages_of_pages_have_a_size_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from streamlit.web.server.starlette import starlette_server

    from senseapp.compat.streamlit_internals import limit_incoming_messages

    monkeypatch.setattr(starlette_server, "get_max_message_size_bytes", starlette_server.get_max_message_size_bytes)
    limit_incoming_messages(1234)
    assert starlette_server._get_uvicorn_config_kwargs()["ws_max_size"] == 1234


def test_every_setting_of_ours_is_one_of_streamlits() -> None:
    from streamlit import config

    known = config.get_config_options()
    with (ROOT / ".streamlit" / "config.toml").open("rb") as file:
        asked = tomllib.load(file)
    flat = {f"{section}.{name}" for section, values in asked.items() for name in values}
    themes = {f"theme.{mode}.{name}" for mode in ("light", "dark") for name in asked["theme"].pop(mode)}
    unknown = (flat - {"theme.light", "theme.dark"} | themes) - set(known)
    assert not unknown, f"Streamlit ignores these settings of .streamlit/config.toml: {sorted(unknown)}"


def test_settings_come_from_the_environment_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from senseapp.compat.streamlit_internals import options_of_environment

    monkeypatch.setenv("STREAMLIT_BROWSER_SERVER_ADDRESS", "app.example.org")
    monkeypatch.setenv("STREAMLIT_SERVER_CORS_ALLOWED_ORIGINS", "https://a.org https://b.org")
    assert options_of_environment() == {
        "browser.serverAddress": "app.example.org",
        "server.corsAllowedOrigins": ["https://a.org", "https://b.org"],
    }


def test_agents_ask_where_they_are_shut_out() -> None:
    routes = pytest.importorskip("streamlit.web.server.starlette.starlette_agent_routes", reason="new in 1.67")
    from senseapp.compat.streamlit_internals import PRIVATE_ROUTES

    paths = {route.path for route in routes.create_agent_routes(SimpleNamespace(stats_mgr=None), "base")}
    agent = PRIVATE_ROUTES[1]
    assert all(agent in path for path in paths), f"agents ask at {paths} now"


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"double_value": 3.0}, 3.0),
        ({"int_value": 3}, 3),  # as fields of whole numbers send it
        ({"bool_value": True}, 1.5),
        ({"string_value": "forged"}, 1.5),
        ({"double_value": 9.0}, 1.5),  # its widget fails on it
        ({"int_value": 7}, 7),  # as a field of whole numbers sends it
        ({}, 1.5),
    ],
)
def test_a_forged_state_counts_as_the_usual_value(monkeypatch, value, read) -> None:
    from streamlit.proto.WidgetStates_pb2 import WidgetState
    from streamlit.runtime.state.common import WidgetMetadata
    from streamlit.runtime.state.session_state import WStates

    from senseapp.compat.streamlit_internals import ignore_forged_states

    def deserialize(given: float | None) -> float:
        if given == 9:
            raise AttributeError
        return 1.5 if given is None else given

    monkeypatch.setattr(WStates, "__getitem__", WStates.__getitem__)
    ignore_forged_states()
    states = WStates()
    states.set_widget_from_proto(WidgetState(id="number", **value))
    with pytest.raises(KeyError):
        states["number"]
    states.set_widget_metadata(
        WidgetMetadata(id="number", deserializer=deserialize, serializer=str, value_type="double_value")
    )
    assert states["number"] == states["number"] == read


def test_the_lifespan_of_the_app_is_entered() -> None:
    """The server's own work, such as removing old uploads, starts with the application."""
    from contextlib import asynccontextmanager

    import streamlit

    entered = []

    @asynccontextmanager
    async def lifespan(app):
        entered.append(app)
        yield

    app = streamlit.App(ROOT / "app.py", lifespan=lifespan)
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive():
        return next(messages)

    async def send(message) -> None:
        entered.append(message["type"])

    run_async(app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send))
    assert entered == [app, "lifespan.startup.complete", "lifespan.shutdown.complete"]


LIBRARIES = {"altair", "ray", "starlette", "streamlit", "timm", "torch", "torch_pruning", "torchvision"}
UNDOCUMENTED = (
    "altair.utils",
    "streamlit.elements",
    "streamlit.navigation",
    "streamlit.proto",
    "streamlit.runtime",
    "streamlit.web",
    "torch.nn.modules",
    "torch.nn.parameter",
    "torch_pruning.dependency.",
    "torch_pruning.ops",
)


def undocumented(tree: ast.AST) -> set[str]:
    """Return the private names, and those of undocumented modules, that are imported from libraries."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            modules = {f"{node.module}.{alias.name}": str(node.module) for alias in node.names}
        elif isinstance(node, ast.Import):
            modules = {alias.name: alias.name for alias in node.names}
        else:
            continue
        for name, module in modules.items():
            if name.partition(".")[0] in LIBRARIES and ("._" in name or module.startswith(UNDOCUMENTED)):
                found.add(name)
    return found


@pytest.mark.slow
def test_no_other_module_imports_what_is_private_or_undocumented() -> None:
    sources = [*(ROOT / "senseapp").rglob("*.py"), *(ROOT / "pages").glob("*.py"), ROOT / "app.py"]
    found = {path.name: undocumented(ast.parse(path.read_text("utf-8"))) for path in sources if path.parent != COMPAT}
    assert not {name: own for name, own in found.items() if own}, "these names belong into a module of senseapp/compat"
