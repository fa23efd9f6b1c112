"""Cuts of a layer graph: sets of layers that need nothing from the remaining layers.

A set is a bit mask over the layers.  A pipeline stage is the difference of two cuts, one containing the other,
so branching networks need no special case.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from training.layers.layer_graph import LayerGraph

MOST_CUTS = 400  # of all sets; beyond this, only those along a few orders of the layers are tried


@dataclass(frozen=True, slots=True)
class Cut:
    """A set of layers closed under inputs, with the sums over it."""

    mask: int
    compute_s: float
    activation_bytes: float  # saved for the backward pass
    parameter_bytes: float
    crossing_bytes: float  # outputs read by the remaining layers


def find_cuts(graph: LayerGraph, most: int = MOST_CUTS) -> list[Cut]:
    """Return cuts in ascending order of compute time; the last one is the whole graph."""
    blocks = _join_free_layers(graph)
    cuts = _all_closed_sets(blocks, most) or _along_orders(blocks)
    del cuts[0]
    return sorted(cuts.values(), key=lambda cut: (cut.compute_s, cut.mask.bit_count()))


@dataclass(slots=True)
class _Block:
    """Layers that are never separated: one layer, and those after it that cost nothing."""

    layers: int  # mask
    needs: int  # mask of the blocks that it reads
    compute_s: float = 0
    activation_bytes: float = 0
    parameter_bytes: float = 0
    # Bytes of outputs that other blocks read, each with the mask of those blocks.
    gives: list[tuple[int, float]] = field(default_factory=list)
    takes: list[tuple[int, float]] = field(default_factory=list)


def _join_free_layers(graph: LayerGraph) -> list[_Block]:
    """Join layers that cost nothing to their only input; those without inputs belong to every cut."""
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
    """Extend ``cut``, which contains the blocks ``inside``, by one block."""
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


_EMPTY = Cut(0, 0, 0, 0, 0)


def _all_closed_sets(blocks: Sequence[_Block], most: int) -> dict[int, Cut] | None:
    """Return every closed set of blocks with its cut, or None if there are more than ``most``."""
    cuts, newest = {0: _EMPTY}, [0]
    while newest:
        grown = []
        for inside in newest:
            for number, block in enumerate(blocks):
                larger = inside | 1 << number
                if larger not in cuts and block.needs & ~inside == 0:
                    cuts[larger] = _add(cuts[inside], inside, number, block)
                    grown.append(larger)
        newest = grown
        if len(cuts) > most:
            return None
    return cuts


def _along_orders(blocks: Sequence[_Block]) -> dict[int, Cut]:
    """Return the prefixes of two orders: branch after branch, and the branches in reverse."""
    cuts = {0: _EMPTY}
    for order in (range(len(blocks)), _latest_first(blocks)):
        inside = 0
        for number in order:
            larger = inside | 1 << number
            if larger not in cuts:
                cuts[larger] = _add(cuts[inside], inside, number, blocks[number])
            inside = larger
    return cuts


def _latest_first(blocks: Sequence[_Block]) -> list[int]:
    """Order blocks depth first from the outputs, the last branch first."""
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
    """Yield the positions of the set bits, the lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
