"""The code that reads real GPUs, run against a driver library of our own (stub.c)."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from orchestrator.devices import Holder
from tests.devices.conftest import GpuServer
from tests.waiting import PATIENCE_S

GIB = 2**30
Serve = Callable[..., GpuServer]


def test_eight_gpus_are_found_with_their_names_memory_and_neighbours(serve_gpus: Serve):
    answer = serve_gpus(spec="auto").ask("inventory")

    rows = answer["rows"]
    assert answer["kind"] == "gpu"
    assert [row["index"] for row in rows] == list(range(8))
    assert {(row["name"], row["memory_bytes"]) for row in rows} == {("NVIDIA H200", 141 * GIB)}
    assert [row["numa_node"] for row in rows] == [0] * 4 + [1] * 4
    assert rows[0]["nvlink"] == [rows[1]["id"]]


def test_a_reading_has_memory_utilization_temperature_and_power(serve_gpus: Serve):
    gpus = serve_gpus(
        "used.3 1073741824", "utilization.3 97", "temperature.3 71", "power.3 540000", "energy.3 7200000"
    )

    row = gpus.read()["rows"][3]

    assert (row["used_bytes"], row["total_bytes"]) == (GIB, 141 * GIB)
    assert row["energy_j"] == 7200.0
    assert (row["utilization_percent"], row["temperature_c"], row["power_w"]) == (97, 71, 540.0)


def test_memory_that_the_driver_keeps_for_itself_is_not_in_use(serve_gpus: Serve):
    """Also where the driver counts it as used; one that cannot tell it apart is believed."""
    reserved = [f"reserved.{number} {GIB // 2}" for number in range(4)]

    rows = serve_gpus(*reserved, "used.1 7", "used.2 7", "used_v2.2 1", "memory_v2.3 13").read()["rows"]

    assert [rows[number]["used_bytes"] for number in range(4)] == [0, 7, 7, GIB // 2]
    assert {rows[number]["total_bytes"] for number in range(4)} == {141 * GIB}
    assert not any(row["stale"] for row in rows.values())


def test_a_lost_gpu_is_marked_and_the_others_are_read(serve_gpus: Serve):
    answer = serve_gpus("error.7 15").read()

    assert answer["rows"][7]["gone"]
    assert "GPU 7 is lost" in answer["rows"][7]["error"]
    assert "GPU 7 is lost" in answer["problem"]
    assert [number for number, row in answer["rows"].items() if not row["gone"]] == list(range(7))


def test_a_gpu_that_is_lost_while_it_runs_keeps_its_place_and_its_size(serve_gpus: Serve):
    gpus = serve_gpus("count 2")
    gpus.ask("inventory")

    gpus.shows("count 2", "error.1 15", "open.1 15")

    row = gpus.ask("inventory")["rows"][1]
    assert (row["index"], row["memory_bytes"]) == (1, 141 * GIB)
    assert gpus.read()["rows"][1]["gone"]


@pytest.mark.code("F83")
def test_a_foreign_process_is_shown_with_its_pid_user_and_command(serve_gpus: Serve):
    with subprocess.Popen([sys.executable, "-c", "input()", "a-stranger"], stdin=subprocess.PIPE) as stranger:
        row = serve_gpus(f"process.4 {stranger.pid} 9000000000").read()["rows"][4]
        stranger.kill()

    (process,) = row["processes"]
    assert (process["pid"], process["used_bytes"]) == (stranger.pid, 9000000000)
    assert process["user"]
    assert process["command"].endswith("a-stranger")
    assert process["attempt"] is None


def test_a_process_of_ours_is_named_by_the_nonce_of_its_ancestors(serve_gpus: Serve):
    ours = Holder("GPU-00000000-0000-0000-0000-000000000000", "job-7", 2, 0, None, "n0nce")
    # The child drops its environment: only its parent shows the nonce.
    script = "import subprocess, sys; p = subprocess.Popen(['env', '-i', 'cat']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {"BERTH_NONCE": "n0nce"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        _wait_for_exec(child, "cat")
        row = serve_gpus(f"process.0 {child} 5", holders=(ours,)).read()["rows"][0]
        parent.communicate("")

    assert [process["attempt"] for process in row["processes"]] == ["job-7:2"]


def test_a_process_that_only_claims_to_be_ours_is_foreign(serve_gpus: Serve):
    ours = Holder("GPU-00000000-0000-0000-0000-000000000000", "job-7", 2, 0, None, "n0nce")
    claims = {"BERTH_JOB_ID": "job-7", "BERTH_ATTEMPT": "2", "BERTH_NONCE": "guessed"}
    with subprocess.Popen(["cat"], env=os.environ | claims, stdin=subprocess.PIPE) as liar:
        _wait_for_exec(liar.pid, "cat")
        row = serve_gpus(f"process.0 {liar.pid} 5", holders=(ours,)).read()["rows"][0]
        liar.kill()

    assert [process["attempt"] for process in row["processes"]] == [None]


def _wait_for_exec(pid: int, name: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with open(f"/proc/{pid}/comm") as file:  # noqa: PTH123 - a kernel file
            if file.read().strip() == name:
                return
        time.sleep(0.01)
    pytest.fail(f"process {pid} did not become {name}")


def test_a_process_that_ended_is_shown_without_a_command(serve_gpus: Serve):
    row = serve_gpus("process.0 4194304 5").read()["rows"][0]

    assert row["processes"] == [
        {"pid": 4194304, "used_bytes": 5, "user": None, "command": "", "attempt": None, "age_s": None}
    ]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (9, "is not loaded"),
        (18, "different versions"),
        (4, "/dev/nvidiactl"),
        (999, "The NVIDIA driver failed"),
    ],
)
@pytest.mark.code("F79")
def test_a_driver_that_does_not_start_is_unavailable_with_a_sentence(
    serve_gpus: Serve, code: int, words: str
):
    gpus = serve_gpus(f"init {code}")

    assert words in gpus.ask("inventory")["unavailable"]
    assert words in gpus.ask("read")["unavailable"]


@pytest.mark.code("F79")
def test_a_driver_that_comes_back_is_used_again(serve_gpus: Serve):
    gpus = serve_gpus()
    assert len(gpus.read()["rows"]) == 8

    gpus.shows("init 9")
    assert "is not loaded" in gpus.ask("read")["unavailable"]
    gpus.shows()

    answer = gpus.read()
    assert (len(answer["rows"]), answer["problem"]) == (8, None)


def test_auto_takes_cpu_slots_where_the_driver_does_not_start_and_says_why(serve_gpus: Serve):
    answer = serve_gpus("init 18", spec="auto").ask("inventory")

    assert answer["kind"] == "cpu"
    assert len(answer["rows"]) >= 2
    assert "different versions" in answer["problem"]


def test_auto_takes_cpu_slots_where_the_driver_has_no_gpu(serve_gpus: Serve):
    answer = serve_gpus("count 0", spec="auto").ask("inventory")

    assert (answer["kind"], answer["problem"]) == ("cpu", "The NVIDIA driver found no GPU on this host.")


@pytest.mark.slow
@pytest.mark.code("F80")
def test_a_gpu_that_hangs_is_shown_stale_and_the_others_are_read(serve_gpus: Serve):
    gpus = serve_gpus("used.2 7")
    before = gpus.read()["rows"]
    gpus.shows("used.2 8", "used.3 9", "hang.2 60")

    first, second = gpus.read(), gpus.read()

    assert first["took_s"] < 60
    assert second["took_s"] < first["took_s"]  # what hangs is not asked again
    for answer in (first, second):
        row = answer["rows"][2]
        assert (row["stale"], row["used_bytes"], row["taken_at"]) == (True, 7, before[2]["taken_at"])
        assert answer["rows"][3]["used_bytes"] == 9
        assert "GPU 2 does not answer" in answer["problem"]


@pytest.mark.slow
@pytest.mark.code("F80")
def test_a_driver_that_hangs_as_a_whole_is_unavailable_until_it_answers(serve_gpus: Serve):
    gpus = serve_gpus()
    gpus.read()
    gpus.shows("hang 4")

    assert "has not answered" in gpus.read()["unavailable"]
    gpus.shows()
    assert "has not answered" in gpus.read()["unavailable"]
    time.sleep(2.5)

    assert len(gpus.read()["rows"]) == 8


@pytest.mark.parametrize("nonsense", ["total.1 0", "total.1 -5", "used.1 999999999999999", "used.1 -1"])
@pytest.mark.code("F81")
def test_memory_that_makes_no_sense_is_dropped_and_counted(serve_gpus: Serve, nonsense: str):
    gpus = serve_gpus("used.1 7")
    gpus.read()
    gpus.shows(nonsense)

    answer = gpus.read()

    row = answer["rows"][1]
    assert (row["stale"], row["used_bytes"], row["total_bytes"]) == (True, 7, 141 * GIB)
    assert answer["dropped"] == 1


@pytest.mark.code("F81")
def test_a_gpu_that_never_made_sense_has_no_reading(serve_gpus: Serve):
    answer = serve_gpus("total.1 0").read()

    assert 1 not in answer["rows"]
    assert len(answer["rows"]) == 7


@pytest.mark.parametrize(
    ("nonsense", "field"),
    [
        ("utilization.1 255", "utilization_percent"),
        ("temperature.1 -1", "temperature_c"),
        ("power.1 -5", "power_w"),
    ],
)
@pytest.mark.code("F81")
def test_a_single_value_that_makes_no_sense_is_left_out(serve_gpus: Serve, nonsense: str, field: str):
    answer = serve_gpus(nonsense).read()

    assert answer["rows"][1][field] is None
    assert not answer["rows"][1]["stale"]
    assert answer["dropped"] == 1


@pytest.mark.code("F82")
def test_a_gpu_that_vanishes_moves_no_reading_to_its_neighbour(serve_gpus: Serve):
    gpus = serve_gpus("used.3 33")
    gpus.read()

    gpus.shows("used.3 33", "vanish 2")

    rows = gpus.read()["rows"]
    assert sorted(rows) == [0, 1, 3, 4, 5, 6, 7]
    assert rows[3]["used_bytes"] == 33


@pytest.mark.code("F82")
def test_a_gpu_that_is_added_is_read(serve_gpus: Serve):
    gpus = serve_gpus("count 2")
    gpus.read()

    gpus.shows("count 3")

    assert sorted(gpus.read()["rows"]) == [0, 1, 2]


def test_a_gpu_that_may_be_cut_and_is_not_is_left_out_and_named(serve_gpus: Serve):
    answer = serve_gpus("mig.2 1").ask("inventory")

    assert [row["index"] for row in answer["rows"]] == [0, 1, 3, 4, 5, 6, 7]
    assert "GPU 2 has MIG enabled but no slices" in answer["problem"]


@pytest.mark.parametrize(
    ("mask", "said"), [(0, None), (0x4, None), (0x40, "heat"), (0x20, "heat"), (0x80, "its power supply")]
)
@pytest.mark.code("F85")
def test_a_gpu_that_is_slowed_down_says_by_what(serve_gpus: Serve, mask, said):
    rows = serve_gpus(f"throttle.3 {mask}").read()["rows"]

    assert (rows[3]["slowed"], rows[2]["slowed"]) == (said, None)


@pytest.mark.code("F77")
def test_an_error_is_in_one_reading_of_its_gpu_only(serve_gpus: Serve):
    gpus = serve_gpus("count 3")
    assert [row["xids"] for row in gpus.read()["rows"].values()] == [[], [], []]

    gpus.shows("count 3", "xid.1 94", "xid.1 31")

    assert [row["xids"] for row in gpus.read()["rows"].values()] == [[], [94, 31], []]
    assert [row["xids"] for row in gpus.read()["rows"].values()] == [[], [], []]


@pytest.mark.code("F77")
def test_the_slices_of_a_gpu_have_its_errors(serve_gpus: Serve):
    gpus = serve_gpus(*CUT)
    gpus.ask("read")

    gpus.shows(*CUT, "xid.1 48")

    assert [row["xids"] for row in gpus.ask("read")["rows"]] == [[], [48], [48]]


CUT = ("count 2", "mig.1 1", "slice.1 1g.18gb 18", "slice.1 3g.71gb 71")


def test_the_slices_of_a_gpu_are_devices_in_its_place(serve_gpus: Serve):
    rows = serve_gpus(*CUT).ask("inventory")["rows"]

    assert [row["index"] for row in rows] == [0, 200, 201]
    assert [(row["mig_profile"], row["memory_bytes"] // GIB) for row in rows[1:]] == [
        ("1g.18gb", 18),
        ("3g.71gb", 71),
    ]
    parents = {row["mig_parent"] for row in rows[1:]}
    assert parents == {"GPU-00000000-0000-0000-0000-000000000001"}
    assert all(row["id"].startswith("MIG-") and not row["nvlink"] for row in rows[1:])
    assert rows[0]["nvlink"] == []  # its neighbour is cut


def test_a_slice_has_readings_and_processes_of_its_own(serve_gpus: Serve):
    rows = serve_gpus(*CUT, "process.201 4194304 1073741824").ask("read")["rows"]

    by_id = {row["device_id"][-3:]: row for row in rows}
    assert (by_id["201"]["used_bytes"], by_id["200"]["used_bytes"]) == (GIB, 0)
    assert by_id["201"]["total_bytes"] == 71 * GIB
    assert by_id["201"]["utilization_percent"] is None  # the driver has none for slices
    assert [process["pid"] for process in by_id["201"]["processes"]] == [4194304]


@pytest.mark.parametrize(
    ("then", "seen"),
    [
        (("count 2",), ["000", "001"]),
        ((*CUT[:2], "slice.1 7g.141gb 141"), ["000", "200"]),
        ((*CUT, "slice.1 1g.18gb 18"), ["000", "200", "201", "202"]),
    ],
)
@pytest.mark.code("F82")
def test_a_gpu_that_is_cut_anew_while_it_runs_is_seen_as_it_is(serve_gpus: Serve, then, seen):
    gpus = serve_gpus(*CUT)
    gpus.ask("read")

    gpus.shows(*then)
    gpus.ask("read")

    assert [row["device_id"][-3:] for row in gpus.ask("read")["rows"]] == seen


@pytest.mark.code("F82")
def test_a_whole_gpu_that_is_cut_while_it_runs_becomes_its_slices(serve_gpus: Serve):
    gpus = serve_gpus("count 2")
    gpus.ask("read")

    gpus.shows(*CUT)
    gpus.ask("read")

    assert [row["device_id"][-3:] for row in gpus.ask("read")["rows"]] == ["000", "200", "201"]


@pytest.mark.code("F80")
def test_a_slice_that_hangs_is_stale_and_the_others_are_read(serve_gpus: Serve):
    gpus = serve_gpus(*CUT)
    gpus.ask("read")

    gpus.shows(*CUT, "hang.200 30")

    stale = {row["device_id"][-3:]: row["stale"] for row in gpus.ask("read")["rows"]}
    assert stale == {"000": False, "200": True, "201": False}
