"""What a job's devices showed, as a table."""

import csv
import io
from datetime import timedelta

from django.urls import reverse

from orchestrator.models import JobState, Lease
from orchestrator.store.metrics.device_history import DeviceHistory


def test_every_record_of_the_time_that_the_job_held_its_device(reader, ada, bob, make_attempt, home):
    attempt = make_attempt(state=JobState.RUNNING)
    lease = Lease.objects.get(attempt=attempt)
    Lease.objects.filter(pk=lease.pk).update(started_at=lease.started_at - timedelta(seconds=60))
    history = DeviceHistory(home.device_history)
    now_s = lease.started_at.timestamp()
    for back_s in (120, 40, 20):  # the first before the job had the device
        history.append(lease.device_id, now_s - back_s, memory_used_bytes=2.0**30, utilization_percent=50)
    history.flush()
    address = reverse("job-devices-csv", args=[attempt.job_id])

    answer = reader(ada).get(address)
    rows = list(csv.DictReader(io.StringIO(answer.getvalue().decode())))

    assert "attachment" in answer["Content-Disposition"]
    assert [row["device"] for row in rows] == [lease.device.label] * 2
    assert rows[0]["memory_used_bytes_mean"] == str(2.0**30)
    assert rows[0]["utilization_percent_max"] == "50.0"
    assert rows[0]["power_w_mean"] == ""
    assert reader(bob).get(address).status_code == 404
