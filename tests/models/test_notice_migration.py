"""Why notifications did not arrive, in sentences of an earlier version, becomes facts and comes back from them."""

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from orchestrator.sentences import say_json

BEFORE = [("orchestrator", "0047_health_facts")]
AFTER = [("orchestrator", "0048_notice_facts")]
ERRORS = {
    "": None,
    "This address can no longer be decrypted, because its key was lost. Add it again.": "notice_key_lost",
    "This is not an address for notifications. See the list of services in the docs.": "notice_no_address",
    "nas.lab is inside this network. Ask the server's operator to allow it.": "notice_inside_network",
    "json:// is not encrypted. Use jsons://.": "notice_not_encrypted",
    "The host nowhere.invalid cannot be found.": "notice_host_unknown",
    "No answer within 30 s.": "notice_no_answer",
    "The service answered: Server error {500},\n50 % down": "notice_refused",
    "The service gave no reason.": "notice_no_reason",
    "The service answered:": "told",
    "Of a version that nobody remembers: {}.": "told",
}


@pytest.mark.django_db(transaction=True)
def test_errors_of_an_earlier_version_stay_readable(django_user_model):
    newest = MigrationExecutor(connection).loader.graph.leaf_nodes("orchestrator")
    MigrationExecutor(connection).migrate(BEFORE)
    old = (
        MigrationExecutor(connection)
        .loader.project_state(BEFORE)
        .apps.get_model("orchestrator", "NoticeTarget")
    )
    ada = django_user_model.objects.create_user("ada")
    for error in ERRORS:
        old.objects.create(user_id=ada.pk, sealed=b"", shown="a", last_error=error)
    try:
        MigrationExecutor(connection).migrate(AFTER)
        new = (
            MigrationExecutor(connection)
            .loader.project_state(AFTER)
            .apps.get_model("orchestrator", "NoticeTarget")
        )
        facts = [target.last_why for target in new.objects.order_by("pk")]
        assert [say_json(each) for each in facts] == list(ERRORS)
        assert [each.get("code") for each in facts] == list(ERRORS.values())

        MigrationExecutor(connection).migrate(BEFORE)
        assert [target.last_error for target in old.objects.order_by("pk")] == list(ERRORS)
        old.objects.all().delete()
    finally:
        MigrationExecutor(connection).migrate(newest)
