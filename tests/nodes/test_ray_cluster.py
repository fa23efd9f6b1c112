"""What Ray is started with."""

import os
import tempfile

import pytest

from orchestrator.nodes import ray_cluster
from orchestrator.nodes.ray_cluster import Address, NoRay


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_every_process_of_ray_has_the_token(tmp_path):
    variables = ray_cluster.environment(tmp_path / "token")

    assert (variables["RAY_AUTH_MODE"], variables["RAY_AUTH_TOKEN_PATH"]) == ("token", f"{tmp_path}/token")


def test_folder_of_sockets_is_ours_alone_and_the_same_each_time(tmp_path):
    folder = ray_cluster.short_folder(tmp_path / "home")
    folder.mkdir()
    folder.chmod(0o777)  # as Ray does

    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert ray_cluster.short_folder(tmp_path / "home") == folder
    assert ray_cluster.short_folder(tmp_path / "another") != folder


def test_folder_that_others_may_enter_is_refused(tmp_path):
    ray_cluster.short_folder(tmp_path / "home").parent.chmod(0o755)

    with pytest.raises(NoRay, match="is not a folder of this user alone"):
        ray_cluster.short_folder(tmp_path / "home")


def test_link_in_place_of_the_folder_is_refused(tmp_path):
    folder = ray_cluster.short_folder(tmp_path / "home").parent
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(NoRay):
        ray_cluster.short_folder(tmp_path / "home")


def test_head_runs_no_work_and_a_node_is_found_by_its_name(tmp_path):
    head = ray_cluster.head_command(Address("10.0.0.5", 6380), tmp_path)
    node = ray_cluster.join_command(Address("10.0.0.5", 6380), "10.0.0.6", "gpu2", tmp_path)

    assert head[head.index("--num-cpus") + 1] == "0"
    assert "--head" in head
    assert "--head" not in node
    assert node[node.index("--resources") + 1] == '{"berth-node-gpu2": 1}'


def test_jobs_of_another_server_lie_apart_from_our_own_and_from_those_of_a_third(tmp_path):
    folders = {ray_cluster.folder_of_jobs(tmp_path, token) for token in ("one", "another")}

    assert len(folders) == 2
    assert tmp_path / "jobs" not in {folder / "jobs" for folder in folders}
    assert ray_cluster.folder_of_jobs(tmp_path, "one\n") in folders


def test_logs_of_early_starts_are_removed_unless_they_are_still_written(tmp_path):
    folder = tmp_path / "r"
    for number in range(1, 6):
        log = folder / f"session_2026-11-0{number}" / "logs" / "raylet.out"
        log.parent.mkdir(parents=True)
        log.touch()
        if number != 2:
            for path in (log, log.parent.parent):
                os.utime(path, (0, 0))
    (folder / "session_latest").symlink_to("session_2026-11-05")

    (folder / "ray_current_cluster").write_text("10.0.0.5:6380")

    ray_cluster.prepare_folder(folder)

    assert sorted(path.name for path in folder.iterdir()) == [
        *(f"session_2026-11-0{number}" for number in (2, 3, 4, 5)),
        "session_latest",
    ]
