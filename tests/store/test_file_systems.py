"""Folders on the network, and folders that refuse Berth's user."""

import os
from pathlib import Path

import pytest

from orchestrator.exceptions import WrongSetting
from orchestrator.server.doctor import machine
from orchestrator.server.environment import read_environment
from orchestrator.store.files import file_systems
from orchestrator.store.files.file_systems import mount_of

ROOT = Path(__file__).resolve().parents[2]
MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw shared:2 - autofs systemd-1 rw
31 30 0:41 / /home rw shared:3 - nfs4 filer:/home rw,vers=4.2
32 22 0:42 / /data/with\\040blank rw shared:4 - lustre mds@tcp:/data rw
33 31 8:2 / /home/scratch rw shared:5 - xfs /dev/sdb1 rw
34 22 0:43 / /mnt/c rw shared:6 - fuse.sshfs ana@host: rw
"""


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch) -> None:
    """The mounts of a lab's server."""
    (tmp_path / "mountinfo").write_text(MOUNTS)
    monkeypatch.setattr(file_systems, "MOUNTS", tmp_path / "mountinfo")


@pytest.mark.parametrize(
    ("path", "kind", "is_network"),
    [
        ("/home/ana/.berth", "nfs4", True),
        ("/home/scratch/berth", "xfs", False),
        ("/homes", "ext4", False),
        ("/data/with blank/images", "lustre", True),
        ("/mnt/c/x", "fuse.sshfs", True),
        ("/var/lib/berth", "ext4", False),
    ],
)
def test_file_system_of_a_path_is_the_innermost_mount(mounts, path, kind, is_network):
    mount = mount_of(Path(path))

    assert (mount.kind, mount.is_network) == (kind, is_network)


def test_link_to_the_network_counts_as_network(mounts, tmp_path):
    (tmp_path / "state").symlink_to("/home/ana/.berth")

    assert mount_of(tmp_path / "state").is_network


def test_database_on_the_network_stops_the_start_with_what_to_do(mounts):
    with pytest.raises(
        WrongSetting, match=r"nfs4 at /home\), where the database would be damaged. Set BERTH_HOME"
    ):
        read_environment({"BERTH_HOME": "/home/ana/.berth"})


def test_state_on_the_network_beside_postgresql_is_a_finding(mounts, settings):
    environment = read_environment(
        {"BERTH_HOME": "/home/ana/.berth", "DATABASE_URL": "postgresql://u:p@db/berth"}
    )
    settings.HOME = environment.home

    (finding,) = machine.check_home()

    assert "network file system (nfs4 at /home)" in finding.sentence


def test_state_on_a_local_disk_is_fine(mounts, settings):
    settings.HOME = read_environment({"BERTH_HOME": "/home/scratch/berth"}).home

    assert list(machine.check_home()) == []


def test_a_folder_on_the_network_comes_with_the_numbers_that_decide(mounts):
    sentence = file_systems.network_trap(Path("/home/ana/data"))

    assert "on the network (nfs4 at /home), whose server compares numbers, not names" in sentence
    assert f"Berth runs as user {os.geteuid()} in groups" in sentence
    assert file_systems.network_trap(Path("/var/lib/berth")) == ""
