import json
import subprocess
import sys
from itertools import product
from math import inf
from pathlib import Path

import pytest

from benchmarks.layer_graphs import random_graph
from training.layers.cuts import Cut, find_cuts
from training.layers.layer_graph import LayerGraph, ProfileError, read_profile
from training.layers.partition import (
    NoPartition,
    describe_partitions,
    main,
    partition_asynchronous,
    partition_synchronous,
)
from training.layers.stage_search import Asynchronous, OneForwardOneBackward, TimeModel, split

PROFILES = Path(__file__).parents[3] / "benchmarks" / "data" / "profiles"
LINKS = 16e9
MEMORY = 16e9
LAYER = "{} -- Linear -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=4.0, parameter_size=8.0\n"


@pytest.mark.parametrize(
    ("profile", "alone_x", "over_parallel_x"), [("vgg16", 3.957, 1.142), ("gnmt", 3.457, 2.269)]
)
def test_four_devices_reach_the_throughput_published_with_the_profiles(profile, alone_x, over_parallel_x):
    answer = describe_partitions(read_profile(PROFILES / f"{profile}.txt"), 4, LINKS, MEMORY, 32)

    assert answer["predicted_throughput_x"] >= alone_x
    assert answer["over_data_parallel_x"] >= over_parallel_x


@pytest.mark.parametrize("profile", ["vgg16", "gnmt", "resnet50", "inception_v3"])
@pytest.mark.parametrize("devices", [2, 3, 8])
def test_stages_contain_every_layer_once_and_need_no_later_stage(profile, devices):
    graph = read_profile(PROFILES / f"{profile}.txt")

    found = partition_asynchronous(graph, devices, Asynchronous(LINKS, MEMORY))

    stage_of = {name: place for place, stage in enumerate(found.stages) for name in stage.layers}
    assert sorted(stage_of) == sorted(layer.name for layer in graph.layers)
    assert sum(len(stage.layers) for stage in found.stages) == len(graph.layers)
    for layer, inputs in zip(graph.layers, graph.inputs, strict=True):
        assert all(stage_of[graph.layers[each].name] <= stage_of[layer.name] for each in inputs)
    assert found.devices <= devices


def best_by_trying_all(graph: LayerGraph, model: TimeModel, devices: int, stages: int | None) -> float:
    """The slowest stage's seconds of the best of all chains of cuts and all replica counts."""
    cuts = [Cut(0, 0, 0, 0, 0), *find_cuts(graph)]
    everything = cuts[-1].mask

    def rest(start: Cut, left: int, stages_left: int | None) -> float:
        if start.mask == everything:
            return 0 if left == 0 and not stages_left else inf
        if left == 0 or stages_left == 0:
            return inf
        found = inf
        for end, replicas in product(cuts, range(1, left + 1)):
            if start.mask & ~end.mask or start.mask == end.mask:
                continue
            fewer = None if stages_left is None else stages_left - 1
            later = rest(end, left - replicas, fewer)
            here = model.stage_s(start, end, replicas, left - replicas, stages_left or 1)
            found = min(found, max(later, here))
        return found

    return rest(cuts[0], devices, stages)


@pytest.mark.parametrize("seed", range(12))
def test_search_equals_brute_force_over_all_splits(seed):
    graph = random_graph(seed, 6)
    free = Asynchronous(bandwidth=8, memory_bytes=90)
    together = OneForwardOneBackward(bandwidth=8, memory_bytes=120, micro_batches=4)

    for model, stages in ((free, None), (together, 1), (together, 2), (together, 3)):
        found = split(graph, model, 3, stages=stages)
        expected = best_by_trying_all(graph, model, 3, stages)
        assert (found.slowest_s if found else inf) == pytest.approx(expected)


def test_few_micro_batches_make_fewer_stages_faster():
    graph = read_profile(PROFILES / "gnmt.txt")

    few, few_s = partition_synchronous(graph, 4, OneForwardOneBackward(LINKS, MEMORY, 2))
    many, many_s = partition_synchronous(graph, 4, OneForwardOneBackward(LINKS, MEMORY, 64))

    assert len(few.stages) <= len(many.stages)
    assert few_s / 2 > many_s / 64


def test_synchronous_stage_keeps_one_micro_batch_per_later_stage():
    start, end = Cut(0, 0, 0, 0, 0), Cut(1, 1, activation_bytes=10, parameter_bytes=1, crossing_bytes=0)
    model = OneForwardOneBackward(bandwidth=1, memory_bytes=24, micro_batches=8)

    assert model.stage_s(start, end, 1, 1, stages_left=2) < inf
    assert model.stage_s(start, end, 1, 2, stages_left=3) == inf


def test_a_model_too_large_for_all_devices_is_refused_with_its_size():
    with pytest.raises(NoPartition, match="no split over 2 devices fits into 1,000,000 bytes"):
        partition_asynchronous(read_profile(PROFILES / "vgg16.txt"), 2, Asynchronous(LINKS, 1e6))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no layers"),
        ("hello world\n", "line 1: 'hello world' is neither a layer"),
        (LAYER.format("a") + "\ta -- b\n", "line 2: the edge names 'b'"),
        (LAYER.format("a") + LAYER.format("a"), "line 2: a occurs twice"),
        (LAYER.format("a").replace("1.0", "soon"), "forward_compute_time is 'soon'"),
        (LAYER.format("a").replace("2.0", "nan"), "backward_compute_time is 'nan'"),
        (LAYER.format("a").replace("8.0", "-8"), "parameter_size is '-8"),
        (LAYER.format("a").replace("activation_size=4.0, ", ""), "a has no activation_size"),
        (LAYER.format("a") + LAYER.format("b") + "\ta -- b\n\tb -- a\n", "form a cycle through a"),
        (LAYER.format("a").replace("Linear", "Input0"), "contains only inputs"),
    ],
)
def test_invalid_profile_is_refused_with_its_line(text, message, tmp_path):
    path = tmp_path / "profile.txt"
    path.write_text(text)

    with pytest.raises(ProfileError, match=message):
        read_profile(path)


def test_binary_profile_is_refused(tmp_path):
    path = tmp_path / "profile.txt"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(ProfileError, match="not UTF-8 text"):
        read_profile(path)


def test_partition_command_explains_a_missing_file(tmp_path, capsys):
    gone = tmp_path / "gone.txt"

    assert main([str(gone), "--devices", "2", "--bandwidth", "1e9", "--memory", "1e9"]) == 2

    assert "cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [("--devices", "0"), ("--memory", "nan"), ("--bandwidth", "-1")])
def test_partition_command_refuses_invalid_values(wrong, capsys):
    options = {"--devices": "2", "--bandwidth": "1e9", "--memory": "1e9"} | dict([wrong])

    with pytest.raises(SystemExit):
        main([str(PROFILES / "vgg16.txt"), *(word for pair in options.items() for word in pair)])

    assert wrong[0] in capsys.readouterr().err


def test_partition_command_prints_json_without_loading_torch():
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "training.plan.partition",
        str(PROFILES / "gnmt.txt"),
    ]
    options = ["--devices", "4", "--bandwidth", "16e9", "--memory", "16e9"]

    ended = subprocess.run([*command, *options], capture_output=True, text=True, check=True)

    answer = json.loads(ended.stdout)
    assert [stage["replicas"] for stage in answer["stages"]] == [1, 1, 1, 1]
    assert answer["predicted_throughput_x"] >= 3.457
    assert " torch" not in ended.stderr
    assert " numpy" not in ended.stderr
