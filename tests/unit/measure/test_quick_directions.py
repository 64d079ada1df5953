"""From directions of the class scores to KL and loss: exact where it claims to be, Gauss-Newton in the small."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from senseapp.tasks.directions import ScoreDirections, choose_directions


def _scores(images: int, classes: int) -> Tensor:
    return 2 * torch.randn(images, classes, generator=torch.Generator().manual_seed(0))


def _moves(images: int, classes: int, size: float) -> Tensor:
    return size * torch.randn(images, classes, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _signs(images: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 2, (images, classes), generator=torch.Generator().manual_seed(seed)) * 2 - 1


def _pulls(directions: ScoreDirections, moves: Tensor) -> Tensor:
    return torch.stack([(vector.double() * moves).sum(dim=1) for vector in directions.vectors], dim=1)


def _true_kl(scores: Tensor, moves: Tensor) -> Tensor:
    before, after = scores.double().log_softmax(1), (scores.double() + moves).log_softmax(1)
    return F.kl_div(after, before, reduction="none", log_target=True).sum(dim=1)


@pytest.mark.parametrize(("classes", "most"), [(2, 2), (3, 2), (5, 4), (5, 9)])
def test_with_a_head_for_each_class_the_kl_is_exact(classes: int, most: int) -> None:
    scores, moves = _scores(20, classes), _moves(20, classes, size=3)
    directions = choose_directions(scores, None, _signs(20, classes), most)
    assert len(directions.vectors) == classes - 1
    torch.testing.assert_close(
        directions.changes(_pulls(directions, moves))["kl"], _true_kl(scores, moves), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("most", [2, 4])
def test_small_moves_give_the_gauss_newton_term_in_expectation(most: int) -> None:
    images, classes, draws = 4, 12, 4000
    scores, moves = _scores(images, classes), _moves(images, classes, size=1e-3)
    directions = choose_directions(scores.repeat(draws, 1), None, _signs(images * draws, classes), most)
    found = directions.changes(_pulls(directions, moves.repeat(draws, 1)))["kl"].reshape(draws, images).mean(0)
    p = scores.double().softmax(1)
    fisher = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    expected = torch.einsum("ni,nij,nj->n", moves, fisher, moves) / 2
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0)


def test_loss_change_is_exact_with_a_head_for_each_class() -> None:
    scores, labels, moves = _scores(12, 4), torch.arange(12) % 4, _moves(12, 4, size=2)
    directions = choose_directions(scores, labels, _signs(12, 4), 3)
    expected = F.cross_entropy(scores.double() + moves, labels, reduction="none")
    expected -= F.cross_entropy(scores.double(), labels, reduction="none")
    torch.testing.assert_close(directions.changes(_pulls(directions, moves))["loss"], expected, rtol=1e-4, atol=1e-5)


def test_loss_change_is_first_order_with_few_heads() -> None:
    scores, labels, moves = _scores(12, 40), torch.arange(12), _moves(12, 40, size=1e-4)
    directions = choose_directions(scores, labels, _signs(12, 40), 2)
    expected = ((scores.double().softmax(1) - F.one_hot(labels, 40)) * moves).sum(dim=1)
    torch.testing.assert_close(directions.changes(_pulls(directions, moves))["loss"], expected, rtol=1e-2, atol=1e-8)


def test_moving_all_scores_alike_changes_nothing() -> None:
    scores, moves = _scores(6, 8), torch.full((6, 8), 5.0, dtype=torch.float64)
    directions = choose_directions(scores, torch.arange(6), _signs(6, 8), 3)
    products = _pulls(directions, moves)
    assert directions.changes(products)["kl"].max() < 1e-9
    assert directions.changes(products)["loss"].abs().max() < 1e-5


def test_a_confident_image_saturates() -> None:
    """A move that flips a sure prediction costs what its margin says, 48 nats; the quadratic term says 0.01."""
    scores = torch.tensor([[12.0, 0.0]])
    moves = torch.tensor([[-60.0, 0.0]], dtype=torch.float64)
    directions = choose_directions(scores, None, _signs(1, 2), 2)
    assert directions.changes(_pulls(directions, moves))["kl"].item() == pytest.approx(48, abs=0.1)


def test_constant_scores_are_no_trouble() -> None:
    directions = choose_directions(torch.zeros(2, 6), None, _signs(2, 6), 3)
    assert all(vector.isfinite().all() for vector in directions.vectors)
