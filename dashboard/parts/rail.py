"""The places of the rail in order; a new page adds one line here and an icon to the sprite."""

from dataclasses import dataclass
from functools import cache

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop as mark

from orchestrator.models import Role

LAB, SERVER = mark("Lab"), mark("Server")


@dataclass(frozen=True, slots=True)
class Place:
    """``nav`` is what its views call themselves in their context."""

    nav: str
    name: str
    view: str  # name of its address
    icon: str
    group: str = mark("Work")
    for_staff: bool = False
    for_hosts: bool = False  # operators of every pool, and admins


PLACES = (
    Place("overview", mark("Overview"), "overview", "overview"),
    Place("queue", mark("Queue"), "queue", "queue"),
    Place("jobs", mark("Jobs"), "jobs", "jobs"),
    Place("compare", mark("Compare"), "compare", "compare"),
    Place("sweeps", mark("Sweeps"), "sweeps", "sweeps"),
    Place("projects", mark("Projects"), "projects", "projects"),
    Place("sessions", mark("Sessions"), "sessions", "sessions"),
    Place("services", mark("Services"), "services", "services"),
    Place("datasets", mark("Datasets"), "datasets", "datasets"),
    Place("models", mark("Models"), "models", "models"),
    Place("environments", mark("Environments"), "environments", "environments"),
    Place("benchmarks", mark("Benchmarks"), "benchmarks", "benchmarks"),
    Place("usage", mark("Usage"), "usage", "usage", LAB),
    Place("pools", mark("Pools"), "pools", "pools", LAB),
    Place("bookings", mark("Bookings"), "bookings", "bookings", LAB),
    Place("people", mark("People"), "people", "people", LAB, for_hosts=True),
    Place("server", mark("Server"), "server", "server", SERVER, for_hosts=True),
    Place("audit", mark("Audit"), "audit", "audit", SERVER, for_staff=True),
    Place("documentation", mark("Docs"), "documentation", "docs", SERVER),
    Place("docs", mark("API docs"), "api:openapi-view", "api", SERVER),
    Place("admin", mark("Admin"), "admin:index", "admin", SERVER, for_staff=True),
)


def role_known(user: AbstractBaseUser | AnonymousUser) -> str:
    """The role on the person's row, read once a request; empty without a row."""
    return str(getattr(getattr(user, "person", None), "role", ""))


@cache
def _addresses() -> dict[str, str]:
    """URLs of the places; pages that this server does not have are left out."""
    found = {}
    for place in PLACES:
        try:
            found[place.nav] = reverse(place.view)
        except NoReverseMatch:
            continue
    return found


def places_for(user: AbstractBaseUser | AnonymousUser) -> list[dict[str, str]]:
    """The places that this reader sees in the rail."""
    staff = bool(getattr(user, "is_staff", False))
    hosts = staff or role_known(user) == Role.OPERATOR
    addresses = _addresses()
    return [
        {
            "nav": place.nav,
            "name": _(place.name),
            "icon": place.icon,
            "url": addresses[place.nav],
            "group": _(place.group),
        }
        for place in PLACES
        if place.nav in addresses and (staff or not place.for_staff) and (hosts or not place.for_hosts)
    ]
