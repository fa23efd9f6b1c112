"""Who used more than their share comes later; weights and time change what that is."""

from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.exceptions import WrongSetting
from orchestrator.models import Job, JobState, OwnerUse, Quota
from orchestrator.scheduler import passes
from orchestrator.server.environment import read_environment


@pytest.fixture(autouse=True)
def _one_device(home, make_device):
    make_device(0)


def used(user, gpu_hours: float, days_ago: float = 0) -> None:
    at = timezone.now() - timedelta(days=days_ago)
    OwnerUse.objects.create(owner=user, decayed_gpu_s=gpu_hours * 3600, decayed_at=at)


def first_started() -> str:
    passes.run_pass()
    return str(Job.objects.get(state=JobState.STARTING).owner)


def test_heavy_user_comes_after_light_user(make_job, ada, bob):
    used(ada, 10)
    make_job(ada)
    make_job(bob)

    assert first_started() == "bob"


def test_a_weight_makes_the_share_larger(make_job, ada, bob):
    used(ada, 10)
    used(bob, 4)
    Quota.objects.create(user=ada, weight=3)
    make_job(ada)
    make_job(bob)

    assert first_started() == "ada"  # first come


def test_old_use_counts_less(make_job, ada, bob):
    used(ada, 10, days_ago=28)
    used(bob, 2)
    make_job(ada)
    make_job(bob)

    assert first_started() == "ada"


def test_the_half_life_is_a_setting(tmp_path):
    def half_life_s(text: str) -> float:
        return read_environment({"BERTH_HOME": str(tmp_path), "BERTH_FAIR_SHARE_DAYS": text}).half_life_s

    assert half_life_s("1.5") == 1.5 * 86_400
    for wrong in ("0", "-1", "week", "1e3", "nan"):
        with pytest.raises(WrongSetting, match=r"give days, from 0\.01 to 3650"):
            half_life_s(wrong)
