"""The sampler: every sample exactly once an epoch, whatever happens in between."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, TensorDataset

from training.data import DataError, ResumableSampler, make_loader, measure_length, start_epoch
from training.data.sampler import SamplerState, epoch_order


def samplers(length: int, world_size: int, state: SamplerState | None = None) -> list[ResumableSampler]:
    made = [ResumableSampler(length, seed=3, rank=rank, world_size=world_size) for rank in range(world_size)]
    for sampler in made:
        if state:
            sampler.load_state_dict(state)
    return made


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    length=st.integers(1, 200),
    lives=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 6)), max_size=6),
)
def test_every_sample_occurs_once_per_epoch_while_world_and_batch_sizes_change(
    length: int, lives: list[tuple[int, int, int]]
) -> None:
    """Each life is (ranks, batch size, steps before it dies); the last one ends the epoch."""
    seen: list[int] = []
    state = None
    for world_size, batch_size, steps in [*lives, (3, 4, length)]:
        ranks = samplers(length, world_size, state)
        readers = [iter(sampler) for sampler in ranks]
        for _ in range(steps):
            if ranks[0].epoch == 1:
                break
            samples = min(ranks[0].left, batch_size * world_size)
            for sampler, reader in zip(ranks, readers, strict=True):
                seen += [next(reader) for _ in range(sampler.rank_count(samples))]
            for sampler in ranks:
                sampler.advance(samples)
        state = ranks[0].state_dict()
        if ranks[0].epoch == 1:
            break

    assert sorted(seen) == list(range(length))


def test_epochs_differ_and_can_be_repeated() -> None:
    first, second = epoch_order(100, 0, 0), epoch_order(100, 0, 1)

    assert not torch.equal(first, second)
    assert torch.equal(second, epoch_order(100, 0, 1))
    assert not torch.equal(first, epoch_order(100, 1, 0))


def test_order_of_samples_never_changes() -> None:
    """A checkpoint of today must continue with a later version."""
    assert epoch_order(8, 1, 2).tolist() == [0, 4, 7, 5, 1, 6, 2, 3]


def test_prefetching_loader_does_not_move_the_position() -> None:
    sampler = ResumableSampler(10, rank=0, world_size=1)

    list(DataLoader(TensorDataset(torch.arange(10)), batch_size=2, sampler=sampler))

    assert sampler.position == 0


@pytest.mark.parametrize(
    ("length", "world_size", "batch_size"), [(1, 3, 2), (7, 2, 3), (12, 2, 3), (13, 2, 3)]
)
def test_all_ranks_get_the_same_number_of_batches(length: int, world_size: int, batch_size: int) -> None:
    dataset = TensorDataset(torch.arange(length), torch.arange(length))

    counts = {
        len(list(make_loader(dataset, sampler, batch_size, 0))) for sampler in samplers(length, world_size)
    }

    assert counts == {-(-length // (world_size * batch_size))}


class Noisy(Dataset[tuple[float, float, float]]):
    """Random augmentation by all three generators people use."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[float, float, float]:
        return torch.rand(()).item(), random.random(), float(np.random.rand())  # noqa: S311 -- an augmentation


@pytest.mark.slow
def test_augmentation_in_workers_is_the_same_after_a_resume() -> None:
    def batches(position: int) -> list[Any]:
        sampler = ResumableSampler(24, rank=0, world_size=1)
        sampler.advance(position)
        return [torch.stack(batch) for batch in make_loader(Noisy(), sampler, 4, 2)]

    through, resumed = batches(0), batches(12)

    assert all(torch.equal(a, b) for a, b in zip(through[3:], resumed, strict=True))
    assert not torch.equal(through[0], through[1])


@pytest.mark.slow
def test_persistent_workers_read_the_next_epoch_like_new_ones() -> None:
    stays, fresh = (ResumableSampler(24, rank=0, world_size=1) for _ in range(2))
    loader = make_loader(Noisy(), stays, 4, 1, persistent_workers=True)
    first = [torch.stack(batch) for batch in loader]
    for sampler in (stays, fresh):
        sampler.advance(24)

    start_epoch(loader, stays)
    second = [torch.stack(batch) for batch in loader]

    expected = [torch.stack(batch) for batch in make_loader(Noisy(), fresh, 4, 1)]
    assert all(torch.equal(a, b) for a, b in zip(second, expected, strict=True))
    assert not torch.equal(first[0], second[0])


def test_tensors_read_in_batches_equal_those_read_one_by_one() -> None:
    data = TensorDataset(torch.randn(13, 3), torch.arange(13))

    class OneByOne(Dataset[Any]):
        def __len__(self) -> int:
            return 13

        def __getitem__(self, index: int) -> Any:
            return data[index]

    whole, single = (
        list(make_loader(each, ResumableSampler(13, rank=0, world_size=1), 4, 0))
        for each in (data, OneByOne())
    )

    torch.testing.assert_close(whole, single, rtol=0, atol=0)


def test_another_dataset_is_refused_at_resume() -> None:
    with pytest.raises(DataError, match="made with 10 samples, the dataset has 11"):
        ResumableSampler(11).load_state_dict(ResumableSampler(10).state_dict())


def test_datasets_that_cannot_be_resumed_are_refused() -> None:
    with pytest.raises(DataError, match="generator can be read only once"):
        measure_length(number for number in range(3))
    with pytest.raises(DataError, match="int cannot be read: it has neither __len__ and __getitem__"):
        measure_length(3)
    with pytest.raises(DataError, match="empty"):
        ResumableSampler(0)
