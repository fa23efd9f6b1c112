"""In which order, and by which worker, files are tested: a file stays on one worker, and the dearest come first.

A file's servers, browsers and models are then made once. Dear files at the end would leave other workers idle.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# By the seconds of a core that each took, from 200 down to 10. A file that is missing here only costs time.
DEAREST = (
    "tests/system/test_kills.py",
    "tests/system/test_life.py",
    "tests/chaos/test_campaign.py",
    "tests/system/test_slurm.py",  # where Slurm is installed
    "tests/scheduler/core/test_sequences.py",
    "tests/training/test_strategies.py",
    "tests/system/test_nodes.py",
    "tests/dashboard/test_browser_axe.py",
    "tests/dashboard/test_browser.py",
    "tests/training/test_sharded.py",
    "tests/training/test_checkpoint.py",
    "tests/training/test_serving.py",
    "tests/system/test_models.py",
    "tests/system/test_federated_sites.py",
    "tests/store/test_shards_of_two_saves.py",  # waits more than it computes
    "tests/system/test_benchmarks.py",
    "tests/training/test_behaviours.py",
    "tests/training/test_examples.py",
    "tests/deploy/test_docs.py",
    "tests/chaos/test_simulation.py",
    "tests/training/test_federated.py",
    "tests/dashboard/test_browser_layout.py",
    "tests/berth/test_following.py",
    "tests/berth/test_commands.py",
    "tests/berth/test_client.py",
    "tests/dashboard/test_browser_edges.py",
    "tests/dashboard/test_browser_charts.py",
    "tests/training/test_autotune.py",
    "tests/system/test_hostile.py",
    "tests/training/plan/test_memory.py",
    "tests/system/test_jobs.py",
    "tests/shells/test_ssh.py",
    "tests/training/test_tee.py",
    "tests/api/test_errors.py",
    "tests/supervisor/test_entry.py",
    "tests/supervisor/test_torchrun.py",
    "tests/system/test_gpus.py",
    "tests/dashboard/test_browser_log.py",
    "tests/system/test_scripts.py",
    "tests/system/test_scheduling.py",
    "tests/system/test_trainers.py",
    "tests/system/test_outages.py",
    "tests/system/test_live.py",
    "tests/system/test_postgresql.py",
    "tests/system/test_schemathesis.py",
    "tests/system/test_sharing.py",
    "tests/system/test_single_sign_on.py",
    "tests/system/test_upgrades.py",
    "tests/system/test_raw_http.py",
    "tests/supervisor/test_runs.py",
    "tests/dashboard/test_browser_keys.py",
    "tests/training/test_trainer.py",
    "tests/training/test_techniques.py",
    "tests/jobs/test_lifecycle.py",
    "tests/deploy/test_wheel.py",
    "tests/scheduler/core/test_bookings.py",
    "tests/tools/test_attempts.py",
    "tests/jobs/test_images.py",
    "tests/supervisor/test_images.py",
    "tests/store/test_rare_files_of_a_folder.py",
    "tests/dashboard/test_browser_federated.py",
    "tests/agent/test_dead_launches.py",
    "tests/dashboard/test_first_states.py",
    "tests/training/test_repeat.py",
    "tests/training/test_kill_points.py",
    "tests/scheduler/test_replays.py",
    "tests/scheduler/core/test_ranked_starvation.py",
    "tests/server/test_doctor.py",
    "tests/server/test_backup.py",
    "tests/server/test_starting.py",
    "tests/training/test_bench.py",
    "tests/supervisor/test_abuse.py",
    "tests/jobs/test_state_machine.py",
    "tests/dashboard/test_browser_journeys.py",
    "tests/api/test_training_preview.py",
    "tests/training/plan/test_trial.py",
    "tests/people/test_notices.py",
    "tests/scheduler/core/test_ranked_invariants.py",
    "tests/scheduler/core/test_invariants.py",
    "tests/training/test_placed.py",
)
APART = {"tests/chaos/test_campaign.py"}  # each test has a server of its own anyway
TOGETHER = {"tests/berth/test_client.py": "tests/berth/test_commands.py"}  # one server for both


def turn_of(test: str) -> str:
    """What goes to one worker as a whole: a file, a test that shares nothing, or files that share a server."""
    file = test.partition("::")[0]
    return test if file in APART else TOGETHER.get(file, file)


def sort(items: list[pytest.Item]) -> None:
    """Put the dearest files first; others stay as they are, tests without transactions before those with."""
    places = {file: place for place, file in enumerate(DEAREST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


class ByFile(LoadScopeScheduling):
    """Whole files to workers, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # it would begin with the files of most tests

    def remove_node(self, node: WorkerController) -> str | None:
        """Give what a lost worker had left to others, without the test that ended it; the base class repeats that."""
        for unit in self.assigned_work[node].values():
            for test, done in unit.items():
                if not done:
                    unit[test] = True
                    super().remove_node(node)
                    return str(test)
        super().remove_node(node)
        return None

    def _split_scope(self, nodeid: str) -> str:
        return turn_of(nodeid)
