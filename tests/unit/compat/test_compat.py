"""What senseapp relies on that its libraries do not promise, where no test of a behaviour would fail without it."""

import ast
import tomllib
from functools import partial
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


def test_a_graph_of_torch_pruning_reads_as_data() -> None:
    import torch
    import torch_pruning

    from senseapp.compat import torch_pruning_internals as internals

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    graph = torch_pruning.DependencyGraph()
    assert internals.nodes_of(graph) == {}
    graph.build_dependency(model, torch.zeros(1, 3, 4, 4))
    nodes = internals.nodes_of(graph)
    assert [internals.node_name(nodes[module]).partition(" ")[0] for module in model] == ["0", "1", "2"]
    assert sum(internals.is_output(node) for node in nodes.values()) <= 1
    assert not internals.is_output(nodes[model[0]])
    (following,) = {edge.target.module for edge in nodes[model[0]].dependencies} & set(model)
    assert following is model[1]
    edge = next(edge for edge in nodes[model[0]].dependencies if edge.target.module is model[1])
    assert edge.is_triggered_by(graph.get_pruner_of_module(model[0]).prune_out_channels)
    internals.map_indices(graph)
    scored = internals.group_of([(edge, [0, 1, 2, 3], [0, 1, 2, 3])])
    scores = torch_pruning.importance.BNScaleImportance()(scored)
    assert scores.shape == (4,)


def test_index_maps_lead_where_those_of_torch_pruning_do() -> None:
    import numpy as np
    from torch_pruning._helpers import _HybridIndex
    from torch_pruning.dependency import index_mapping

    from senseapp.compat.torch_pruning_internals import Channels, map_channels

    positions, roots = np.array([0, 1, 4, 5, 6, 9, 12]), np.array([0, 0, 4, 5, 5, 9, 3])
    maps = [
        make(reverse=reverse)
        for make in (
            partial(index_mapping._FlattenIndexMapping, stride=3),
            partial(index_mapping._ConcatIndexMapping, offset=[4, 10]),
            partial(index_mapping._SplitIndexMapping, offset=[4, 10]),
            partial(index_mapping._SliceIndexMapping, dim=1, start=1, step=2, end=10),
        )
        for reverse in (False, True)
    ]
    for index_map in maps:
        theirs = index_map([_HybridIndex(idx=int(p), root_idx=int(r)) for p, r in zip(positions, roots, strict=True)])
        ours = map_channels(index_map, Channels(positions, roots))
        assert sorted(zip(*map(np.ndarray.tolist, ours), strict=True)) == sorted(tuple(each) for each in theirs)
        assert (np.diff(ours.positions) >= 0).all()
    with pytest.raises(ValueError, match="less than one position"):
        map_channels(index_mapping._FlattenIndexMapping(stride=0, reverse=True), Channels(positions, roots))
    with pytest.raises(TypeError, match="GQA"):
        map_channels(index_mapping._GQAIndexMapping(repeat=2, head_dim=2), Channels(positions, roots))


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

    from senseapp.compat.timm_internals import weights_from

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


def test_uploads_and_metrics_are_where_they_are_looked_for() -> None:
    from streamlit.web.server.starlette.starlette_routes import create_metrics_routes, create_upload_routes

    from senseapp.compat.streamlit_internals import PRIVATE_ROUTES, UPLOAD_ROUTE

    runtime = SimpleNamespace(stats_mgr=None)
    found = [route.path for route in create_upload_routes(runtime, None, "base")]  # type: ignore[arg-type]
    for path in found:
        match = UPLOAD_ROUTE.search(path.format(session_id="a", file_id="b"))
        assert match is not None, f"uploads go to {path} now"
        assert (match["session"], match["file"]) == ("a", "b")
    metrics = PRIVATE_ROUTES[0]
    paths = {route.path for route in create_metrics_routes(runtime, "base")}  # type: ignore[arg-type]
    assert all(metrics in path for path in paths), f"metrics are at {paths} now"


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
def test_a_forged_state_counts_as_the_usual_value(
    monkeypatch: pytest.MonkeyPatch, value: dict[str, object], read: float
) -> None:
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
