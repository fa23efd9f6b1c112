"""The page of federated trainings in a browser: sites here and at other Berths, at a desk and on a phone."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from orchestrator.federations import asking, creation, invitations
from orchestrator.models import FederationInvitation, FederationMember, Pool
from tests.api.test_federated import ASKED, REPORT
from tests.dashboard.conftest import settle
from tests.dashboard.test_browser_layout import LOOK

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning"),
]


@pytest.fixture
def federation(ada, make_device, home):
    """Sites in every state: jobs, one that joined, one that is left out, one that was revoked, one to be invited."""
    Pool.objects.get_or_create(name="cpu")
    for index in range(4):
        make_device(index, kind="cpu", pool_id="cpu")
    made = creation.create(
        ada, asking.parse({**ASKED, "name": "clinics of the north", "sites": 2, "remote_sites": 5})
    )
    for name in ("clinic-b", "hospital-of-saint-mary-in-the-north", "late", "gone"):
        invitations.invite(ada, made, name)
    invitations.revoke(ada, made, "gone")
    now = timezone.now()
    rows = FederationInvitation.objects.filter(name__in=("clinic-b", "hospital-of-saint-mary-in-the-north"))
    rows.update(joined_at=now - timedelta(hours=1), seen_at=now)
    server = FederationMember.objects.get(federation=made, number=None).job
    output = home.job(server.pk).output
    output.mkdir(parents=True, exist_ok=True)
    lost = [
        {"site": 3, "round": 2, "why": "its job was stopped"},
        {"site": 5, "round": 0, "why": "its invitation was revoked"},
    ]
    (output / "federated.json").write_text(json.dumps({**REPORT, "lost": lost}))
    return made


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_sites_here_and_elsewhere_are_shown_invited_and_revoked(open_page, ada, federation, width, scheme):
    page = open_page(ada, "/federated", width=width, color_scheme=scheme)
    settle(page)
    for text in (
        "never joined",
        "left out from round 2 on",
        "takes part",
        "waits for an invitation",
        "not there yet",
    ):
        assert page.get_by_text(text).first.is_visible(), text
    assert page.evaluate(LOOK) == []

    page.get_by_label("Invite a site at another Berth").fill("clinic-z")
    page.get_by_role("button", name="Make a link").click()
    link = page.locator("#new-link")
    link.wait_for()
    assert "/federated#bsite_" in link.inner_text()
    assert page.evaluate(LOOK) == []

    page.get_by_role("button", name="Revoke clinic-z").click()
    page.get_by_text("Revoked clinic-z").first.wait_for()
    assert page.get_by_role("button", name="Revoke clinic-z").count() == 0
    assert FederationInvitation.objects.get(name="clinic-z").revoked_at is not None
