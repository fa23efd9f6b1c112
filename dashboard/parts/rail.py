"""The places of the rail in order; a new page adds one line here and an icon to the sprite."""

from dataclasses import dataclass
from functools import cache

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.urls import NoReverseMatch, reverse

from orchestrator.models import Role


@dataclass(frozen=True, slots=True)
class Place:
    """``nav`` is what its views call themselves in their context."""

    nav: str
    name: str
    view: str  # name of its address
    icon: str
    group: str = "Work"
    for_staff: bool = False
    for_hosts: bool = False  # operators of every pool, and admins


PLACES = (
    Place("overview", "Overview", "overview", "overview"),
    Place("queue", "Queue", "queue", "queue"),
    Place("jobs", "Jobs", "jobs", "jobs"),
    Place("compare", "Compare", "compare", "compare"),
    Place("sweeps", "Sweeps", "sweeps", "sweeps"),
    Place("projects", "Projects", "projects", "projects"),
    Place("sessions", "Sessions", "sessions", "sessions"),
    Place("services", "Services", "services", "services"),
    Place("datasets", "Datasets", "datasets", "datasets"),
    Place("models", "Models", "models", "models"),
    Place("environments", "Environments", "environments", "environments"),
    Place("benchmarks", "Benchmarks", "benchmarks", "benchmarks"),
    Place("usage", "Usage", "usage", "usage", "Lab"),
    Place("pools", "Pools", "pools", "pools", "Lab"),
    Place("bookings", "Bookings", "bookings", "bookings", "Lab"),
    Place("people", "People", "people", "people", "Lab", for_hosts=True),
    Place("server", "Server", "server", "server", "Server", for_hosts=True),
    Place("audit", "Audit", "audit", "audit", "Server", for_staff=True),
    Place("documentation", "Docs", "documentation", "docs", "Server"),
    Place("docs", "API docs", "api:openapi-view", "api", "Server"),
    Place("admin", "Admin", "admin:index", "admin", "Server", for_staff=True),
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
            "name": place.name,
            "icon": place.icon,
            "url": addresses[place.nav],
            "group": place.group,
        }
        for place in PLACES
        if place.nav in addresses and (staff or not place.for_staff) and (hosts or not place.for_hosts)
    ]
