"""Launch records that were written on another server."""

from orchestrator.nodes.places import Places, moved

THERE = Places("/srv/berth", "/opt/berth", "/opt/venv/bin/python", ("/opt/venv",), 8)
HERE = Places("/data/b", "/home/lab/berth", "/home/lab/venv/bin/python", ("/home/lab/venv",), 4)


def test_paths_of_the_state_folder_and_the_packages_become_those_of_this_server():
    record = {
        "work": "/srv/berth/jobs/1/work",
        "args": ["--out=/srv/berth/jobs/1/output", "plain"],
        "env": {"PYTHONPATH": "/srv/berth/jobs/1/work/src:/srv/berth/x"},
        "entry": "/opt/berth/training/entry.py",
    }

    assert moved(record, THERE, HERE) == {
        "work": "/data/b/jobs/1/work",
        "args": ["--out=/data/b/jobs/1/output", "plain"],
        "env": {"PYTHONPATH": "/data/b/jobs/1/work/src:/data/b/x"},
        "entry": "/home/lab/berth/training/entry.py",
    }


def test_python_of_the_other_server_becomes_our_own_with_its_folders():
    record = {"python": THERE.python, "python_roots": ["/opt/venv", "/usr"], "threads": 4}

    launch = moved(record, THERE, HERE)

    assert (launch["python"], launch["python_roots"]) == (HERE.python, ["/home/lab/venv"])
    assert launch["threads"] == 2  # half as many cores


def test_another_python_stays_what_it_is():
    assert moved({"python": "/usr/bin/python3"}, THERE, HERE)["python"] == "/usr/bin/python3"


def test_path_with_signs_that_json_escapes_is_found():
    there = THERE._replace(home='/srv/a "b"\\c')

    assert moved({"work": '/srv/a "b"\\c/jobs'}, there, HERE) == {"work": "/data/b/jobs"}
