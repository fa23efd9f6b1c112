"""The places of the rail in order; a new page adds one line here and an icon to the sprite."""

from dataclasses import dataclass
from functools import cache

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.urls import NoReverseMatch, reverse


@dataclass(frozen=True, slots=True)
class Place:
    """``nav`` is what its views call themselves in their context."""

    nav: str
    name: str
    view: str  # name of its address
    icon: str
    for_staff: bool = False


PLACES = (
    Place("overview", "Overview", "overview", "overview"),
    Place("queue", "Queue", "queue", "queue"),
    Place("jobs", "Jobs", "jobs", "jobs"),
    Place("compare", "Compare", "compare", "compare"),
    Place("datasets", "Datasets", "datasets", "datasets"),
    Place("environments", "Environments", "environments", "environments"),
    Place("benchmarks", "Benchmarks", "benchmarks", "benchmarks"),
    Place("usage", "Usage", "usage", "usage"),
    Place("pools", "Pools", "pools", "pools"),
    Place("audit", "Audit", "audit", "audit", for_staff=True),
    Place("documentation", "Docs", "documentation", "docs"),
    Place("docs", "API docs", "api:openapi-view", "api"),
    Place("admin", "Admin", "admin:index", "admin", for_staff=True),
)


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
    addresses = _addresses()
    return [
        {"nav": place.nav, "name": place.name, "icon": place.icon, "url": addresses[place.nav]}
        for place in PLACES
        if place.nav in addresses and (staff or not place.for_staff)
    ]
