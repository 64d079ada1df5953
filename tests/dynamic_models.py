"""Small networks whose way through their layers depends on the image, or on chance."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.trap_models import NUM_CLASSES, PIXELS, WIDTH, EarlyExit, OrderByData, ReadByData, Trap


def bright(x: Tensor) -> Tensor:
    """Tell of each image (N, C, H, W) whether it is bright."""
    return x.mean((1, 2, 3)) > 0.5


def images(*means: float, seed: int = 1) -> Tensor:
    """Return a random image around each mean."""
    noise = 0.3 * torch.randn(len(means), 3, PIXELS, PIXELS, generator=torch.Generator().manual_seed(seed))
    return noise + torch.tensor(means)[:, None, None, None]


class ExitOfSome(Trap):
    """Each bright image of a batch leaves early, by a head of its own; the others go on."""

    def __init__(self) -> None:
        super().__init__()
        self.exit = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, NUM_CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        leave, features = bright(x), self.norm(self.stem(x))
        scores = features.new_zeros(len(x), NUM_CLASSES)
        if leave.any():
            scores[leave] = self.exit(features[leave])
        if not leave.all():
            scores[~leave] = self.head(self.middle(features[~leave]).mean((2, 3)))
        return scores


class ConfidentExit(ExitOfSome):
    """The whole pass leaves early where the first head is sure, and hands out what it has said."""

    def forward(self, x: Tensor) -> Tensor:
        features = self.norm(self.stem(x))
        early: Tensor = self.exit(features)
        if early.softmax(1).amax(1).mean() > 0.3:
            return early
        scores: Tensor = self.head(self.middle(features).mean((2, 3)))
        return scores


class Experts(Trap):
    """Each image goes through one of three convolutions; those that nobody needs are not called."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(3))

    def middle(self, x: Tensor) -> Tensor:
        x = self.first(x)
        chosen = x.mean((2, 3))[:, :3].argmax(1)
        output = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            if (mine := chosen == index).any():
                output[mine] = expert(x[mine])
        return self.second(F.relu(output))


class FunctionalExperts(Experts):
    """The same, but weights are read without a call of their layer."""

    def middle(self, x: Tensor) -> Tensor:
        x = self.first(x)
        chosen = x.mean((2, 3))[:, :3].argmax(1).tolist()
        parts = []
        for index, image in zip(chosen, x, strict=True):
            expert = self.experts[index]
            parts.append(F.conv2d(image[None], expert.weight, expert.bias, padding=1))
        return self.second(F.relu(torch.cat(parts)))


class SkippedBlock(Trap):
    """A gate closes a block for dark passes."""

    def middle(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.second(x) + x if self.open else x

    def forward(self, x: Tensor) -> Tensor:
        self.open = bool(bright(x).any())
        scores: Tensor = super().forward(x)
        return scores


class DepthByImage(Trap):
    """The second convolution is repeated, once more for bright images."""

    def middle(self, x: Tensor) -> Tensor:
        parts = []
        for image in self.first(x).split(1):
            image = self.second(F.relu(image))
            if image.mean() > 0.0:
                image = self.second(F.relu(image))
            parts.append(image)
        return torch.cat(parts)


class TokensByImage(Trap):
    """Only positions above the mean are looked at, as many as there are."""

    def forward(self, x: Tensor) -> Tensor:
        features = self.middle(self.norm(self.stem(x))).flatten(2).transpose(1, 2)  # (N, H·W, C)
        kept = [tokens[tokens[:, 0] >= tokens[:, 0].mean()].mean(0) for tokens in features]
        scores: Tensor = self.head(torch.stack(kept))
        return scores


class SizeByImage(Trap):
    """Dark passes are made at half the resolution."""

    def forward(self, x: Tensor) -> Tensor:
        if not bright(x).any():
            x = F.avg_pool2d(x, 2)
        scores: Tensor = super().forward(x)
        return scores


class OverwritesByData(Trap):
    """Bright passes write into what a norm has returned, twice as it were if it is handed out twice."""

    def middle(self, x: Tensor) -> Tensor:
        y = self.first(x)
        if x.mean() > 0.0:
            x.mul_(1.5)
        return self.second(F.relu(y)) + self.second(x)


class RemembersBright(Trap):
    """A module keeps something of bright batches only, which another reads."""

    class _Stores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = torch.zeros(())

        def forward(self, x: Tensor) -> Tensor:
            self.kept = x.mean() if x.mean() > 0.0 else torch.zeros(())
            return x

    def __init__(self) -> None:
        super().__init__()
        self.stores = self._Stores()

    def middle(self, x: Tensor) -> Tensor:
        return self.second(F.relu(self.first(self.stores(x)))) + self.stores.kept


class HidesFailure(Trap):
    """Goes on without what raises."""

    def forward(self, x: Tensor) -> Tensor:
        features = self.norm(self.stem(x))
        y = self.middle(features)
        try:
            if bright(x).any():
                y = y + features.sigmoid()
        except Exception:
            y = y * 0
        scores: Tensor = self.head(y.mean((2, 3)))
        return scores


class ViewsByData(Trap):
    """Bright passes regard the output of a convolution as rows, which needs its usual order in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(WIDTH * PIXELS * PIXELS, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = self.stem(x)
        if x.mean() > 0.5:
            scores: Tensor = self.rows(features.view(len(x), -1))
            return scores
        return self.head(self.middle(self.norm(features)).mean((2, 3)))  # type: ignore[no-any-return]


class DropsAtRandom(Trap):
    """Leaves a block out at random, in evaluation too."""

    def middle(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.second(x) if torch.rand(()) > 0.5 else x


DYNAMIC: dict[str, Callable[[], nn.Module]] = {
    "exit of some": ExitOfSome,
    "confident exit": ConfidentExit,
    "early exit": EarlyExit,
    "experts": Experts,
    "functional experts": FunctionalExperts,
    "skipped block": SkippedBlock,
    "depth by image": DepthByImage,
    "order by data": OrderByData,
    "read by data": ReadByData,
    "tokens by image": TokensByImage,
    "size by image": SizeByImage,
    "overwrites by data": OverwritesByData,
    "remembers bright": RemembersBright,
    "hides failure": HidesFailure,
    "views by data": ViewsByData,
}
"""What they return depends on the images alone."""
