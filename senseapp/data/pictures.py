"""Load pictures of folders, archives and image sets with their labels; survey and preview them beforehand."""

import io
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from senseapp.core.errors import InvalidDataset, SeveralLabelsError
from senseapp.core.files import storage_errors
from senseapp.core.texts import plural, printable
from senseapp.data.archives import open_archive
from senseapp.data.arrangement import Arrangement, arrange, arrange_annotated
from senseapp.data.contents import UNLABELLED, Entry, FolderSource, PictureSource, Unreadable, resolve_readable
from senseapp.data.image_sets import ImageSetSource, fetch_image_set, open_image_set
from senseapp.data.images import ImageSet, PreparedImages, allocate_rows, channel_mode, chosen_of, draw_order
from senseapp.data.picture_process import DECODERS
from senseapp.data.reading import DrawnPictures, read_drawn, read_picture, require_readable
from senseapp.networks.loaded import Preprocessing
from senseapp.records.answers import MOST_PICTURE_MEGABYTES
from senseapp.records.inputs import ImageSurvey
from senseapp.records.spec import WITHOUT_LABELS, DataSpec
from senseapp.tasks import MULTILABEL, Task
from senseapp.tasks.class_numbers import Background, ModelClasses
from senseapp.tasks.labels import Targets, WrittenLabels

_LEAST_SIDE, _MOST_SIDE = 96, 160
"""Of a thumbnail: smaller inputs are enlarged without smoothing, larger ones reduced."""
SEVERAL_NOTE = "Several labels are true of some images, so the model is taken to be multi-label."


def survey_images(
    spec: DataSpec, *, num_classes: int, task: Task, class_names: Sequence[str] = (), data_roots: Sequence[Path] = ()
) -> ImageSurvey:
    """List a folder, archive or image set and propose what each of its labels means.

    ``spec`` is of kind ``folder``, ``archive`` or ``torchvision``; an image set that is not here is downloaded. Only
    folders below ``data_roots`` are read; none given allow any. Raises InvalidDataset where it cannot be read, may not
    be, or holds no picture, or none that can be decoded.
    """
    with _opened(spec, data_roots, lambda _: None) as source:
        arrangement = _arranged(source, spec, task)
        require_readable(source, arrangement.entries)
        notes = (*source.contents.notes(), *arrangement.notes, *task.label_notes(arrangement.labels))
        tables = source.contents.offered_tables() if task.annotations is None else arrangement.choices
    if arrangement.several and not task.several_labels:
        task, notes = MULTILABEL, (*notes, SEVERAL_NOTE)
    counts = Counter(arrangement.labels) + Counter(name for truth in arrangement.several for name in truth.true)
    return ImageSurvey(
        title=source.title,
        layout=arrangement.layout,
        num_images=len(arrangement.entries),
        label_counts=tuple((name, counts[name]) for name in arrangement.label_names),
        proposal=task.proposal(_written_labels(arrangement, class_names, task.outputs_of_head(num_classes))),
        notes=notes,
        tables=tables,
        class_names=tuple(class_names),
        task=task.name,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """The images to load, prepared by ``preprocessing``, which has the overrides of ``spec``.

    Attributes:
        task: reads labels, as those of the ``num_classes`` outputs of the model.
        class_names: by which folders are recognised, by index, where they are known.
        num_samples: how many to draw (of the photographs and shapes, how many from the first on), at most as many as
            there are; None takes all (for random inputs, a fixed small number).
        seed: of the draw.
        data_roots: folders that may be read; empty means any.
        progress: told one sentence now and then while images are downloaded; it may raise to give up.
        names: only the images with these names, of those that are there; None takes any.
    """

    spec: DataSpec
    preprocessing: Preprocessing
    task: Task
    num_classes: int
    class_names: tuple[str, ...] = ()
    background: Background = "unknown"
    num_samples: int | None = None
    seed: int = 0
    data_roots: Sequence[Path] = ()
    progress: Callable[[str], None] = lambda _: None
    names: Collection[str] | None = None


def load_pictures(request: ImageRequest) -> PreparedImages:
    """Load the drawn pictures of a folder, archive or image set; only these are decoded."""
    channel_mode(request.preprocessing)  # a model that takes no pictures is refused before anything is read
    with _opened(request.spec, request.data_roots, request.progress) as source:
        arrangement = _arranged(source, request.spec, request.task)
        try:
            entries, targets = _labelled(request, arrangement)
        except InvalidDataset:
            require_readable(source, arrangement.entries)  # if none can be, that is what a person has to know
            raise
        order = draw_order(len(entries), request.num_samples, request.seed)
        if request.names is not None:
            order = [place for place in order if printable(entries[place].name) in request.names]
            if not order:
                raise InvalidDataset("These pictures are no longer where the run found them.")
        wanted = len(order) if request.num_samples is None else min(request.num_samples, len(order))
        drawn = read_drawn(
            source,
            entries,
            order,
            wanted,
            request.preprocessing,
            upright=request.spec.upright,
            annotations=arrangement.annotations,
        )
    if request.num_samples is not None and len(drawn.found) < request.num_samples:
        note = f"All {plural(len(drawn.found), 'picture')} are measured; {request.num_samples:,} were asked for."
        targets = replace(targets, notes=(*targets.notes, note))
    if (read := arrangement.annotations) is not None and (marked := drawn.num_marked):
        place = f"{plural(marked, 'picture')} with a rotation mark: {read.reader.words[1]} are read as drawn on the "
        targets = replace(targets, notes=(*targets.notes, f"{place}picture as it is stored, before it is turned."))
    return _image_set(request, arrangement, entries, targets, drawn, order, source.contents.notes())


def _written_labels(arrangement: Arrangement, class_names: Sequence[str], num_outputs: int) -> WrittenLabels:
    return WrittenLabels(
        layout=arrangement.layout,
        labels=arrangement.labels,
        several=arrangement.several,
        names=arrangement.label_names,
        num_outputs=num_outputs,
        output_names=class_names,
    )


def _labelled(request: ImageRequest, arrangement: Arrangement) -> tuple[tuple[Entry, ...], Targets]:
    """Return the pictures by name, and the targets of their folders or table lines; else InvalidDataset."""
    notes = arrangement.notes
    if arrangement.several and not request.task.several_labels:
        raise SeveralLabelsError(
            "Several labels are true of some images, and the model is read as one that gives each image one class. "
            "Choose multi-label (--task multilabel), or measure without labels."
        )
    if arrangement.annotations is not None:
        return arrangement.entries, Targets(values=None, names=arrangement.annotations.found.names, notes=notes)
    if arrangement.layout != "unlabelled":
        written = _written_labels(arrangement, request.class_names, request.task.outputs_of_head(request.num_classes))
        found = request.task.targets(written, request.spec.class_map)
        if found.values is not None:
            kept = tuple(arrangement.entries[place] for place in found.kept)
            return kept, replace(found, notes=(*notes, *found.notes))
        notes = found.notes
    unlabelled = UNLABELLED if request.task.uses_labels else request.task.label_help
    return arrangement.entries, Targets(values=None, notes=(*notes, unlabelled))


@contextmanager
def _opened(spec: DataSpec, roots: Sequence[Path], progress: Callable[[str], None]) -> Iterator[PictureSource]:
    source: PictureSource
    if spec.kind == "torchvision":
        fetch_image_set(spec.name, progress)
        source = open_image_set(spec.name)
    else:
        path = resolve_readable(spec.path, roots)
        source = FolderSource(path, roots) if spec.kind == "folder" else open_archive(path)
    try:
        source.contents.require_pictures(source.title)
        yield source
    finally:
        source.close()


def _arranged(source: PictureSource, spec: DataSpec, task: Task) -> Arrangement:
    with_labels = spec.labels != WITHOUT_LABELS and task.uses_labels
    if isinstance(source, ImageSetSource):
        return source.arrangement(with_labels=with_labels and task.annotations is None)
    if task.annotations is not None:
        chosen = spec.labels if with_labels else ""
        return arrange_annotated(source, task.annotations, chosen=chosen, with_labels=with_labels)
    return arrange(
        source,
        table=spec.labels if with_labels else "",
        with_labels=with_labels,
        several=task.several_labels,
        classes=[name for name, _ in spec.class_map],
    )


def _image_set(
    request: ImageRequest,
    arrangement: Arrangement,
    entries: Sequence[Entry],
    targets: Targets,
    drawn: DrawnPictures,
    order: Sequence[int],
    listing_notes: Iterable[str],
) -> PreparedImages:
    """Put the drawn pictures into the order of their names."""
    rows = drawn.rows
    chosen = sorted([index for index in order if index in rows][: request.num_samples])
    labels = None if targets.values is None else chosen_of(targets.values, chosen)
    if (reader := request.task.annotations) is not None and arrangement.annotations is not None:
        fitted = reader.fitted(
            drawn.targets(chosen),
            arrangement.annotations.found,
            ModelClasses(
                num_outputs=request.task.outputs_of_head(request.num_classes),
                names=request.class_names,
                background=request.background,
            ),
            request.spec.class_map,
        )
        labels, targets = fitted.values, replace(fitted, notes=(*targets.notes, *fitted.notes))
    return PreparedImages(
        drawn.pixels,
        request.preprocessing,
        labels,
        rows=torch.tensor([rows[index] for index in chosen]),
        class_names=targets.names,
        names=tuple(printable(entries[index].name) for index in chosen),
        notes=(*targets.notes, *drawn.notes(), *listing_notes),
        picture_size=drawn.usual_size,
        num_marked=drawn.num_marked,
        label_orders=targets.orders,
        written=targets.written,
        read_as=targets.read_as,
    )


def prepared_picture(path: Path, preprocessing: Preprocessing, *, upright: bool = False) -> PreparedImages:
    """Read one picture in a process that can be ended, and prepare it like the pictures of a folder.

    Raises InvalidDataset where the file is gone, too large, or no picture that can be used.
    """
    name = printable(path.name)
    with storage_errors("the picture"):
        if not path.is_file():
            raise InvalidDataset("The picture is no longer on this server. Choose it again.")
        if path.stat().st_size > MOST_PICTURE_MEGABYTES * 1_000_000:
            raise InvalidDataset(f"A picture may have up to {MOST_PICTURE_MEGABYTES} MB, and {name} has more.")
        file = path.read_bytes()
    try:
        drawn = DrawnPictures(allocate_rows(1, preprocessing.input_shape))
        drawn.add(0, *read_picture(file, preprocessing, upright=upright, foreign=True))
    except Unreadable as reason:
        raise InvalidDataset(
            f"{name} cannot be used as a picture: {reason}. Choose another, or save it again as JPEG or PNG."
        ) from reason
    finally:
        DECODERS.rest()
    return PreparedImages(drawn.pixels, preprocessing, names=(name,), notes=tuple(drawn.notes()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Images chosen evenly over the set, so that sorted classes are all seen.

    Attributes:
        indices: their places in the set; hand them to ``images.subset`` to predict the same ones.
        pictures: uint8 RGB (n, H, W, 3).
    """

    indices: tuple[int, ...]
    pictures: npt.NDArray[np.uint8]


def preview(images: ImageSet, preprocessing: Preprocessing, count: int = 12) -> Preview:
    """Return at most ``count`` images, cropped as the network sees them and back in visible colours.

    ``preprocessing`` is the one they were prepared with, see :func:`~senseapp.data.images.effective_preprocessing`.
    """
    indices = tuple(dict.fromkeys(np.linspace(0, len(images) - 1, count).round().astype(int).tolist()))
    chosen = images.subset(indices).batch(0, len(indices))
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (preprocessing.mean, preprocessing.std))
    visible = (chosen * std + mean).mul(255).round().clamp(0, 255).byte()  # (n, C, H, W)
    if visible.shape[1] < 3:
        visible = visible[:, :1].expand(-1, 3, -1, -1)
    visible = visible[:, :3]  # of more channels, as if the first three were the colours
    if preprocessing.channel_order == "bgr":
        visible = visible.flip(1)
    return Preview(indices=indices, pictures=visible.permute(0, 2, 3, 1).contiguous().numpy())


def png_of(picture: npt.NDArray[np.uint8], *, most: int = _MOST_SIDE) -> bytes:
    """Return a thumbnail of ``picture``, RGB (H, W, 3), of at most ``most`` pixels a side, as a PNG file."""
    image = Image.fromarray(picture)
    factor = -(-_LEAST_SIDE // min(image.size))
    if factor > 1:
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    image.thumbnail((2 * most, 2 * most) if factor > 1 else (most, most))
    file = io.BytesIO()
    image.save(file, format="PNG")
    return file.getvalue()
