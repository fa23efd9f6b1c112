"""Where a layer graph can be cut in two: sets of layers that need nothing from the rest.

Such a set is kept as a bit mask over the layers.  A stage of a pipeline lies between two cuts of which
one contains the other, so branching nets need no special case.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from training.plan.layers import LayerGraph

MOST_CUTS = 400  # of all sets; beyond, only those along a few orders of the layers are tried


@dataclass(frozen=True, slots=True)
class Cut:
    """A set of layers closed under inputs, with the sums over it."""

    mask: int
    compute_s: float
    activation_bytes: float  # kept for the backward pass
    parameter_bytes: float
    crossing_bytes: float  # outputs that the rest of the layers reads


def find_cuts(graph: LayerGraph, most: int = MOST_CUTS) -> list[Cut]:
    """Cuts in ascending order of compute time; the last one is the whole graph."""
    blocks = _join_free_layers(graph)
    cuts = _all_closed_sets(blocks, most) or _along_orders(blocks)
    del cuts[0]
    return sorted(cuts.values(), key=lambda cut: (cut.compute_s, cut.mask.bit_count()))


@dataclass(slots=True)
class _Block:
    """Layers that are never parted: one, and those behind it that cost nothing."""

    layers: int  # mask
    needs: int  # mask of the blocks it reads
    compute_s: float = 0
    activation_bytes: float = 0
    parameter_bytes: float = 0
    # Bytes of outputs that other blocks read, each with the mask of those blocks.
    gives: list[tuple[int, float]] = field(default_factory=list)
    takes: list[tuple[int, float]] = field(default_factory=list)


def _join_free_layers(graph: LayerGraph) -> list[_Block]:
    """A layer that costs nothing joins its only input; one without inputs belongs to every cut."""
    block_of: list[int] = []
    blocks: list[_Block] = []
    free = 0
    for number, (layer, reads) in enumerate(zip(graph.layers, graph.inputs, strict=True)):
        read_blocks = {block_of[each] for each in reads if block_of[each] >= 0}
        if layer.is_free and not read_blocks:
            block_of.append(-1)
            free |= 1 << number
            continue
        if layer.is_free and len(read_blocks) == 1:
            home = read_blocks.pop()
        else:
            home = len(blocks)
            blocks.append(_Block(0, sum(1 << each for each in read_blocks)))
        block_of.append(home)
        blocks[home].layers |= 1 << number
        blocks[home].compute_s += layer.compute_s
        blocks[home].activation_bytes += layer.activation_bytes
        blocks[home].parameter_bytes += layer.parameter_bytes
    blocks = blocks or [_Block(0, 0)]
    for block in blocks:
        block.layers |= free
    _connect(graph, blocks, block_of)
    return blocks


def _connect(graph: LayerGraph, blocks: list[_Block], block_of: Sequence[int]) -> None:
    for number, readers in enumerate(graph.outputs()):
        home = block_of[number]
        reading = {block_of[each] for each in readers} - {home, -1}
        if home < 0 or not reading:
            continue
        output = (sum(1 << each for each in reading), graph.layers[number].activation_bytes)
        blocks[home].gives.append(output)
        for each in reading:
            blocks[each].takes.append(output)


def _add(cut: Cut, inside: int, number: int, block: _Block) -> Cut:
    """``cut``, which holds the blocks ``inside``, with one block more."""
    outside = ~(inside | 1 << number)
    crossing = cut.crossing_bytes
    crossing += sum(size for readers, size in block.gives if readers & outside)
    crossing -= sum(size for readers, size in block.takes if not readers & outside)
    return Cut(
        mask=cut.mask | block.layers,
        compute_s=cut.compute_s + block.compute_s,
        activation_bytes=cut.activation_bytes + block.activation_bytes,
        parameter_bytes=cut.parameter_bytes + block.parameter_bytes,
        crossing_bytes=crossing,
    )


_NOTHING = Cut(0, 0, 0, 0, 0)


def _all_closed_sets(blocks: Sequence[_Block], most: int) -> dict[int, Cut] | None:
    """Every closed set of blocks with its cut, or None where there are more than ``most``."""
    found, newest = {0: _NOTHING}, [0]
    while newest:
        grown = []
        for inside in newest:
            for number, block in enumerate(blocks):
                larger = inside | 1 << number
                if larger not in found and block.needs & ~inside == 0:
                    found[larger] = _add(found[inside], inside, number, block)
                    grown.append(larger)
        newest = grown
        if len(found) > most:
            return None
    return found


def _along_orders(blocks: Sequence[_Block]) -> dict[int, Cut]:
    """The prefixes of two orders: branch after branch, and the branches from their other end."""
    found = {0: _NOTHING}
    for order in (range(len(blocks)), _latest_first(blocks)):
        inside = 0
        for number in order:
            larger = inside | 1 << number
            if larger not in found:
                found[larger] = _add(found[inside], inside, number, blocks[number])
            inside = larger
    return found


def _latest_first(blocks: Sequence[_Block]) -> list[int]:
    """Depth first from the outputs, the last branch before the first."""
    order: list[int] = []
    seen = 0
    for last in reversed(range(len(blocks))):
        stack = [(last, False)]
        while stack:
            number, expanded = stack.pop()
            if expanded:
                order.append(number)
            elif not seen >> number & 1:
                seen |= 1 << number
                stack.append((number, True))
                stack += [(each, False) for each in numbers(blocks[number].needs) if not seen >> each & 1]
    return order


def numbers(mask: int) -> Iterator[int]:
    """The places of the ones, from the lowest."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
