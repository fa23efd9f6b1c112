"""Images, histograms, tables and texts among the arguments of trackers, as plain values that ``training.media`` takes."""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ..media import LONGEST_SIDE, Counted  # noqa: TID252 -- the entry loads the room under another name

TRACKERS: Final = frozenset({"wandb", "trackio", "aim", "mlflow", "comet_ml"})
MOST_OF_A_LIST = 16  # images of one name and step
MOST_DEPTH = 4
# W&B and Trackio make a histogram of an array with more numbers than this.
LONGEST_LIST = 32
_LAYOUTS: Final = {"first": "CHW", "last": "HWC"}  # Comet's words


class Value(NamedTuple):
    """A value that was found, and how to read it; reading may take milliseconds and may raise anything."""

    kind: str
    name: str
    read: Callable[[], Any]


def values_in(given: Any, name: str, depth: int = 0) -> Iterator[Value]:
    """The trackers' own objects, figures and long arrays in an argument; of a list, each has its number in its name."""
    if isinstance(given, Mapping) and depth < MOST_DEPTH:
        for key, each in given.items():
            yield from values_in(each, f"{name}/{key}" if name else str(key), depth + 1)
    elif isinstance(given, (list, tuple)) and depth < MOST_DEPTH:
        for at, each in enumerate(given[:MOST_OF_A_LIST]):
            yield from object_in(each, f"{name}/{at}" if len(given) > 1 else name)
    elif _is_long_array(given):
        yield Value("histogram", name, lambda: given)
    else:
        yield from object_in(given, name)


def object_in(given: Any, name: str) -> Iterator[Value]:
    """A tracker's own object, or a figure; nothing for other values."""
    kind = type(given)
    root = kind.__module__.partition(".")[0]
    if root in TRACKERS:
        for words, medium, read in _OBJECTS:
            if kind.__name__ in words:
                yield Value(medium, name, lambda read=read: read(given))  # type: ignore[misc]
    elif root == "matplotlib" and hasattr(given, "savefig"):
        yield Value("image", name, lambda: given)


def _is_long_array(given: Any) -> bool:
    shape = getattr(given, "shape", ())
    root = type(given).__module__.partition(".")[0]
    return root in {"numpy", "torch"} and len(shape) > 0 and _count(shape) > LONGEST_LIST


def _count(shape: Any) -> int:
    count = 1
    for side in shape:
        count *= int(side)
    return count


def image_of(given: Any, layout: str = "", *, is_unit: bool = False) -> Any:
    """Pixels, a figure or a file as ``training.media`` takes it: bytes, with at most as many a side as it keeps.

    Args:
        layout: the axes, as TensorBoard and Comet name them; without it they are guessed.
        is_unit: whether floats go from 0 to 1 in any case; else those with a larger one go to 255.
    """
    if given is None and "matplotlib.pyplot" in sys.modules:
        return sys.modules["matplotlib.pyplot"].gcf()
    if hasattr(given, "savefig"):
        return given
    if isinstance(given, str) or hasattr(given, "__fspath__"):
        given = _opened(given)
    if hasattr(given, "convert") and hasattr(given, "mode"):
        return _small(_pixels_of_pil(given))
    return _small(_clipped(_with_channels_last(_array(given), _LAYOUTS.get(layout, layout)), is_unit=is_unit))


def images_of(given: Any, layout: str, name: str, *, is_unit: bool) -> Iterator[Value]:
    """One image, or each of a batch or a list of figures."""
    is_batch = layout[:1] == "N" or isinstance(given, (list, tuple))
    if not is_batch:
        yield Value("image", name, lambda: image_of(given, layout, is_unit=is_unit))
        return
    for at, each in enumerate(given[:MOST_OF_A_LIST]):
        yield Value(
            "image",
            f"{name}/{at}",
            lambda each=each: image_of(each, layout.removeprefix("N"), is_unit=is_unit),  # type: ignore[misc]
        )


def _opened(path: Any) -> Any:
    from PIL import Image  # of the script's own packages: a tracker that takes files has it

    with Image.open(path) as image:
        image.load()
        return image


def _pixels_of_pil(image: Any) -> Any:
    import numpy as np

    if image.mode not in {"L", "RGB", "RGBA"}:
        image = image.convert("RGBA" if "A" in image.mode or "transparency" in image.info else "RGB")
    return np.asarray(image)


def _array(given: Any) -> Any:
    import numpy as np

    if hasattr(given, "detach"):
        given = given.detach().cpu()
        given = given.float() if str(given.dtype) == "torch.bfloat16" else given
    return np.asarray(given)


def _with_channels_last(pixels: Any, layout: str) -> Any:
    if pixels.ndim != len(layout) or set(layout) - set("HWC"):
        return pixels
    return pixels.transpose([layout.index(axis) for axis in "HWC" if axis in layout])


def _clipped(pixels: Any, *, is_unit: bool) -> Any:
    import numpy as np

    if pixels.dtype == np.uint8 or pixels.dtype.kind not in "uif" or not pixels.size:
        return pixels
    is_float = pixels.dtype.kind == "f"
    pixels = np.nan_to_num(pixels) if is_float else pixels
    scale = 255 if is_float and (is_unit or pixels.max() <= 1) else 1
    return np.clip(pixels * scale, 0, 255).astype(np.uint8)


def _small(pixels: Any) -> Any:
    """Each second, third ... pixel of an image that is larger than an image may be."""
    side = max(pixels.shape[:2], default=0)
    is_channels_first = pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4) and pixels.shape[2] not in (1, 3, 4)
    if is_channels_first:
        side = max(pixels.shape[1:])
    every = -(-side // LONGEST_SIDE)
    if every <= 1:
        return pixels
    return pixels[:, ::every, ::every] if is_channels_first else pixels[::every, ::every]


def _image(given: Any) -> Any:
    for method in ("to_pil_image", "to_pil"):
        if hasattr(given, method):
            return image_of(getattr(given, method)())
    return image_of(given.image if hasattr(given, "image") else given._value)


def _histogram(given: Any) -> Counted:
    counts, edges = (
        given.to_np_histogram() if hasattr(given, "to_np_histogram") else (given.histogram, given.bins)
    )
    return Counted(list(counts), list(edges))


def _table(given: Any) -> Any:
    given = getattr(given, "table", given)  # of a chart
    if not hasattr(given, "columns"):
        return [{name: _cell(each) for name, each in row.items()} for row in given.data]
    return {"columns": list(given.columns), "rows": [[_cell(each) for each in row] for row in given.data]}


def _cell(given: Any) -> Any:
    return f"({type(given).__name__})" if type(given).__module__.partition(".")[0] in TRACKERS else given


def _text(given: Any) -> str:
    return str(given.data if hasattr(given, "data") else given.text)


# Names of the trackers' classes, the kind of their values, and what reads one.
_OBJECTS: Final[tuple[tuple[frozenset[str], str, Callable[[Any], Any]], ...]] = (
    (frozenset({"Image", "TrackioImage"}), "image", _image),
    (frozenset({"Histogram", "Distribution"}), "histogram", _histogram),
    (frozenset({"Table", "CustomChart"}), "table", _table),
    (frozenset({"Text", "Markdown"}), "text", _text),
)
