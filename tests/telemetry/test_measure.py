"""The figures that telemetry promises, on small numbers; the benchmarks measure the large ones."""

import pytest

from benchmarks.ingest import measure_downsample, measure_ingest


@pytest.mark.slow
def test_points_are_durable_at_their_size(tmp_path):
    ingest = measure_ingest(tmp_path, points=100_000)

    assert ingest.points == 100_000
    assert ingest.bytes_per_point < 16.01


@pytest.mark.slow
def test_every_planted_spike_is_in_the_buckets(tmp_path):
    downsample = measure_downsample(tmp_path, points=200_000)

    assert downsample.spikes_kept == 20
    assert downsample.buckets <= 1000
