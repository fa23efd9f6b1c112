"""Accounts that operators make and look after: new people, lists of them, passwords, and tokens of programs."""

from django.contrib.auth.models import User
from django.http import HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Query
from pydantic import BaseModel, Field, StrictBool, StrictStr

from orchestrator.api.http.authentication import ADMINS, HOSTS, ApiRequest
from orchestrator.api.http.paging import Page, Paging, page
from orchestrator.api.http.reading import Body
from orchestrator.api.resources.people import LimitsIn, PersonRow, router, show_people
from orchestrator.api.resources.tokens import NewTokenOut, TokenOut, show_token
from orchestrator.models import Right, Role, Scope, Token
from orchestrator.people import audit, new_people, passwords, roster, second_factor, tokens
from orchestrator.spec.field_types import Seconds

__all__ = ["router"]  # of people, with the routes of this module


class PersonIn(Body):
    username: StrictStr = Field(max_length=150)
    name: StrictStr = Field("", max_length=150, description="first and last name")
    email: StrictStr = Field("", max_length=254, description="the mail address")
    role: Role = Role.SUBMITTER
    pools: dict[str, Right] = Field(default_factory=dict, description="rights in single pools")
    quota: LimitsIn | None = Field(None, description="the person's limits over all pools")
    service: StrictBool = Field(False, description="a program's account: no password, tokens that end")


class NewPersonOut(PersonRow):
    password: str | None = Field(
        description="shown only now; at the first sign-in its person chooses another; null: a program's account"
    )


class PeopleIn(Body):
    csv: StrictStr = Field(
        description="a line with the names of the columns (username, name, email, role, pools, max_devices, "
        "max_queued, gpu_hours_a_week, weight), then a line for each person"
    )


class NewPeopleOut(BaseModel):
    people: list[NewPersonOut] = Field(description="in the order of the list, with their passwords")


class PasswordOut(BaseModel):
    password: str = Field(description="shown only now; at the next sign-in the person chooses another")


class ServiceTokenIn(Body):
    name: StrictStr = Field(description="what uses it")
    scope: Scope = Scope.WRITE
    expires_in_s: Seconds = Field(90 * 24 * 3600, description="how long it works, at most a year")


@router.post("", response={201: NewPersonOut}, auth=HOSTS)
def make_person(request: ApiRequest, body: PersonIn) -> NewPersonOut:
    """Make an account with an initial password; operators make viewers and submitters, admins anybody.

    People who choose their own name and password take an invitation instead.
    """
    new = new_people.NewPerson(
        body.username,
        body.name,
        body.email,
        body.role,
        body.pools,
        {} if body.quota is None else body.quota.model_dump(),
        body.service,
    )
    made = new_people.create(new, by=request.user, address=audit.address_of(request))
    return _show_made([made])[0]


@router.post("/import/csv", response={201: NewPeopleOut}, auth=HOSTS)
def import_people(request: ApiRequest, body: PeopleIn) -> NewPeopleOut:
    """Make an account for each line of a list; where one cannot be, none is made and the answer names the line."""
    people = new_people.read_csv(body.csv)
    made = new_people.create_many(people, by=request.user, address=audit.address_of(request))
    return NewPeopleOut(people=_show_made(made))


@router.post("/{username}/password", response=PasswordOut, auth=ADMINS)
def reset_password(request: ApiRequest, username: str) -> PasswordOut:
    """Give a person an initial password, and sign them out everywhere; their tokens stay."""
    user = get_object_or_404(User, username=username)
    return PasswordOut(password=passwords.reset(user, by=request.user, address=audit.address_of(request)))


@router.delete("/{username}/second-factor", response={204: None}, auth=ADMINS)
def reset_second_factor(request: ApiRequest, username: str) -> HttpResponse:
    """Remove every second factor of somebody who lost theirs, and sign them out everywhere."""
    user = get_object_or_404(User, username=username)
    second_factor.reset(user, by=request.user, address=audit.address_of(request))
    return HttpResponse(status=204)


@router.get("/{username}/tokens", response=Page[TokenOut], auth=HOSTS)
def list_service_tokens(request: ApiRequest, username: str, paging: Query[Paging]) -> Page[TokenOut]:
    """The tokens of a service account, newest first."""
    rows = Token.objects.filter(user=_service(username)).select_related("agent")
    return page(Page[TokenOut], request, rows, paging, show=show_token)


@router.post("/{username}/tokens", response={201: NewTokenOut}, auth=HOSTS)
def make_service_token(request: ApiRequest, username: str, body: ServiceTokenIn) -> NewTokenOut:
    """Create a token of a service account; its text is shown only in this answer."""
    token, text = tokens.issue(
        get_object_or_404(User, username=username),
        name=body.name,
        scope=body.scope,
        life_s=body.expires_in_s,
        at_most=request.token_scope,
        ends_by=request.token_ends_at,
        by=request.user,
        address=audit.address_of(request),
    )
    return NewTokenOut(**dict(show_token(token)), token=text)


@router.delete("/{username}/tokens/{int:token_id}", response={204: None}, auth=HOSTS)
def revoke_service_token(request: ApiRequest, username: str, token_id: int) -> HttpResponse:
    """Revoke a token of a service account for good; repeating this is harmless."""
    token = get_object_or_404(Token, pk=token_id, user=_service(username))
    tokens.revoke(token, by=request.user, address=audit.address_of(request))
    return HttpResponse(status=204)


def _service(username: str) -> User:
    return get_object_or_404(User, username=username, person__service=True)


def _show_made(made: list[new_people.Made]) -> list[NewPersonOut]:
    found = {user.pk: user for user in roster.find_people().filter(pk__in=[each.user.pk for each in made])}
    rows = show_people([found[each.user.pk] for each in made])
    return [
        NewPersonOut(**dict(row), password=each.password or None)
        for row, each in zip(rows, made, strict=True)
    ]
