"""Why a device is not healthy, in sentences of an earlier version, becomes facts and comes back from them."""

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from orchestrator.sentences import say_json

BEFORE = [("orchestrator", "0046_federation_invitations")]
AFTER = [("orchestrator", "0047_health_facts")]
REASONS = ["", "It is not there any more.", "Xid 79: the GPU fell off the bus."]


@pytest.mark.django_db(transaction=True)
def test_reasons_of_an_earlier_version_stay_readable():
    newest = MigrationExecutor(connection).loader.graph.leaf_nodes("orchestrator")
    MigrationExecutor(connection).migrate(BEFORE)
    old = MigrationExecutor(connection).loader.project_state(BEFORE).apps
    pool = old.get_model("orchestrator", "Pool").objects.create(name="a")
    for index, reason in enumerate(REASONS):
        old.get_model("orchestrator", "Device").objects.create(
            id=str(index), pool=pool, index=index, kind="gpu", name="G", memory_bytes=1, health_reason=reason
        )
    try:
        MigrationExecutor(connection).migrate(AFTER)
        new = (
            MigrationExecutor(connection).loader.project_state(AFTER).apps.get_model("orchestrator", "Device")
        )
        facts = [device.health_why for device in new.objects.order_by("index")]
        assert [say_json(each) for each in facts] == REASONS
        assert [each.get("code") for each in facts] == [None, "device_gone", "told"]

        MigrationExecutor(connection).migrate(BEFORE)
        back = old.get_model("orchestrator", "Device").objects.order_by("index")
        assert [device.health_reason for device in back] == REASONS
        back.delete()
    finally:
        MigrationExecutor(connection).migrate(newest)
