"""The check that only a compression's own folder knows its name."""

from __future__ import annotations

import pytest

from scripts.compression_names import names_in


@pytest.mark.parametrize(
    "source",
    [
        "x = kind == 'sparsity'",
        "x = 'pruning' != kind",
        "x = kind in ('a', 'quantization')",
        "x = kind not in {'sparsity'}",
        "match kind:\n    case 'pruning':\n        pass",
        "match config:\n    case SparsityConfig():\n        pass",
        "x = {'quantization': 1}",
        "x = configs['quantization']",
        "x = configs.get('sparsity')",
        "x = isinstance(config, (int, spec.PruningConfig))",
        "x = type(config) is QuantizationConfig",
        "x = kind.startswith('sparsity')",
    ],
)
def test_what_depends_on_a_name_is_found(source):
    assert [line for line, _ in names_in(source)] in ([1], [2])


@pytest.mark.parametrize(
    "source",
    [
        "def analyze(compression='sparsity', *, other='pruning'):\n    pass",
        "x = SparsityConfig(granularity='weight')",
        "x = isinstance(config, CompressionConfig)",
        "x = 'Sparsity: a share of zeros'  # sparsity",
        "x = description.sets_bits",
    ],
)
def test_what_does_not_is_left_alone(source):
    assert list(names_in(source)) == []
