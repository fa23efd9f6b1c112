"""Accounts that an operator makes: for one person, for a list of them as CSV, or for a program."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from orchestrator.exceptions import Conflict, Impossible, Malformed, OrchestratorError, Sentence
from orchestrator.models import Person, Pool, Quota, Right, Role
from orchestrator.people import accounts, audit, passwords, quotas, rights
from orchestrator.spec.plain_text import clean_text

MOST_ROWS = 500
MOST_CHARACTERS = 200_000
COLUMNS = ("username", "name", "email", "role", "pools", *quotas.LIMITS)


@dataclass(frozen=True, slots=True)
class NewPerson:
    """What an operator gives to a person without an account."""

    username: str
    name: str = ""
    email: str = ""
    role: Role = Role.SUBMITTER
    pools: Mapping[str, str] = field(default_factory=dict)  # rights by name of the pool
    limits: Mapping[str, float | None] = field(default_factory=dict)  # of a quota over all pools
    service: bool = False  # a program's account, which signs in nowhere


@dataclass(frozen=True, slots=True)
class Made:
    """A new account, and the only copy of its initial password (empty for a program's)."""

    user: User
    password: str


def create(new: NewPerson, *, by: User, address: str = "") -> Made:
    """Make an account; its person chooses a password at the first sign-in.

    Raises:
        Forbidden: it gives more than this operator may give.
        Malformed, Impossible, Conflict: a value cannot be; ``fields`` says which.
    """
    limits = given(new.limits)
    rights.check_give(by, new.role, new.pools)
    check_gifts(new.pools, limits)
    if new.service and new.role == Role.ADMIN:
        sentence = "A service account cannot be an admin. Choose operator, or give it rights in pools."
        raise Impossible(sentence, fields={"role": [sentence]})
    user = User(username=new.username.strip(), first_name=_clean(new.name), email=new.email.strip())
    check_account(user)
    password = "" if new.service else passwords.initial()
    user.password = passwords.hash_initial(password) if password else ""
    if not password:
        user.set_unusable_password()
    with transaction.atomic():
        save(user)
        kind = "service account" if new.service else "account"
        text = f"Created the {kind} {user.username}."
        audit.record(by, "person.made", f"user {user.username}", text, address=address)
        give(user, new.role, new.pools, limits, by=by, address=address)
        Person.objects.update_or_create(
            user=user, defaults={"service": new.service, "must_change": not new.service}
        )
    return Made(user, password)


def create_many(people: Mapping[int, NewPerson], *, by: User, address: str = "") -> list[Made]:
    """Make the accounts of a list, by line; where one cannot be, none is made.

    Raises:
        OrchestratorError: of the first that cannot be; the sentence names the line.
    """
    made = []
    with transaction.atomic():
        for line, new in people.items():
            try:
                made.append(create(new, by=by, address=address))
            except OrchestratorError as error:
                sentence = Sentence(
                    "Line {line}, {username}: {error}", line=line, username=new.username[:80], error=error
                )
                raise type(error)(sentence, fields={"csv": [sentence]}) from error
    return made


def read_csv(text: str) -> dict[int, NewPerson]:
    """Read a list of people: a line with the names of the columns, then one line for each person.

    Returns:
        The people by the numbers of their lines.

    Raises:
        Malformed: the list cannot be read; the sentence names the line and what would be right.
    """
    if len(text) > MOST_CHARACTERS:
        raise _wrong_list(
            Sentence(
                "The list has {text:,} characters; give at most {most_characters:,}.",
                text=len(text),
                most_characters=MOST_CHARACTERS,
            )
        )
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff")), strict=True)
    try:
        names = reader.fieldnames or []
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise _wrong_list(
            Sentence(
                "The list is no CSV, at line {line_num}: {error}.", line_num=reader.line_num, error=error
            )
        ) from error
    if "username" not in names or not rows:
        known = ", ".join(COLUMNS)
        raise _wrong_list(
            Sentence(
                "Begin the list with the names of its columns, of {known}; then a line for each person.",
                known=known,
            )
        )
    if wrong := [name for name in names if name not in COLUMNS]:
        raise _wrong_list(
            Sentence(
                "There is no column {wrong!r}; there are {columns}.",
                wrong=wrong[0][:40],
                columns=", ".join(COLUMNS),
            )
        )
    if len(rows) > MOST_ROWS:
        raise _wrong_list(
            Sentence(
                "The list has {rows:,} people; give at most {most_rows} at once.",
                rows=len(rows),
                most_rows=MOST_ROWS,
            )
        )
    return {line: _read_row(line, row) for line, row in rows}


def _read_row(line: int, row: Mapping[str | None, Any]) -> NewPerson:
    if None in row:
        raise _wrong_list(Sentence("Line {line} has more cells than there are columns.", line=line))
    cells = {name: (row.get(name) or "").strip() for name in COLUMNS}
    role = cells["role"] or Role.SUBMITTER
    if role not in Role.values:
        raise _wrong_list(
            Sentence(
                "Line {line}: {role!r} is no role; choose one of {values}.",
                line=line,
                role=role[:40],
                values=", ".join(Role.values),
            )
        )
    return NewPerson(
        cells["username"],
        cells["name"],
        cells["email"],
        Role(role),
        _read_pools(line, cells["pools"]),
        {name: _read_limit(line, name, cells[name]) for name in quotas.LIMITS},
    )


def _read_pools(line: int, text: str) -> dict[str, str]:
    """``a100:submit h100:operate``; a pool alone is the right to submit."""
    pairs = (word.partition(":") for word in text.split())
    pools = {pool: right or Right.SUBMIT for pool, _, right in pairs}
    if wrong := [right for right in pools.values() if right not in Right.values]:
        raise _wrong_list(
            Sentence(
                "Line {line}: {wrong!r} is no right; write pools as a100:submit h100:operate.",
                line=line,
                wrong=wrong[0][:40],
            )
        )
    return pools


def _read_limit(line: int, name: str, text: str) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        value = -1.0
    whole = name.startswith("max_")
    if value is not None and not (0 < value <= quotas.UNLIMITED and (not whole or value.is_integer())):
        kind = Sentence("a whole number" if whole else "a number")
        raise _wrong_list(
            Sentence(
                "Line {line}: {name} is {text!r}; give {kind} from 1, or leave it empty for no limit.",
                line=line,
                name=name,
                text=text[:40],
                kind=kind,
            )
        )
    return int(value) if value is not None and whole else value


def check_account(user: User, password: str | None = None) -> None:
    """Check a new name and password; a name that differs from another's in case only is taken.

    Raises:
        Malformed, Conflict: ``fields`` says which is wrong.
    """
    fields: dict[str, list[str]] = {}
    try:
        user.clean_fields(exclude=["password"])
    except ValidationError as error:
        fields.update(error.message_dict)
    try:
        if password is not None:
            validate_password(password, user)
    except ValidationError as error:
        fields["password"] = error.messages
    if fields:
        raise Malformed(next(iter(fields.values()))[0], fields=fields)
    if User.objects.filter(username__iexact=user.username).exists():
        raise _name_taken(user.username)


def save(user: User) -> None:
    """Save a new account.

    Raises:
        Conflict: the name was taken this moment.
    """
    try:
        with transaction.atomic():
            user.save()
    except IntegrityError:
        raise _name_taken(user.username) from None


def check_gifts(pools: Mapping[str, str], limits: Mapping[str, float]) -> None:
    """Check the rights in pools and the limits that somebody new is to have.

    Raises:
        Malformed, Impossible: ``fields`` says which is wrong.
    """
    known = set(Pool.objects.filter(pk__in=pools).values_list("pk", flat=True))
    if missing := sorted(set(pools) - known):
        sentence = Sentence("There is no pool {missing!r}.", missing=missing[0][:80])
        raise Impossible(sentence, fields={"pools": ["there is no such pool"]})
    if wrong := sorted(set(pools.values()) - set(Right.values)):
        message = Sentence(
            "{wrong!r} is no right; choose {values}", wrong=wrong[0][:40], values=" or ".join(Right.values)
        )
        raise Malformed(Sentence("pools: {message}.", message=message), fields={"pools": [message]})
    if limits:
        quotas.check_quota(Quota(user=User(), pool=None, **limits))


def given(limits: Mapping[str, float | None]) -> dict[str, float]:
    """The limits that were given."""
    return {name: value for name, value in limits.items() if name in quotas.LIMITS and value is not None}


def give(
    user: User,
    role: Role,
    pools: Mapping[str, str],
    limits: Mapping[str, float],
    *,
    by: User,
    address: str = "",
) -> None:
    """Give a new account its role, its rights in pools and its limits."""
    accounts.set_role(user, role, by=by, address=address)
    for pool in Pool.objects.filter(pk__in=pools):
        accounts.give_right(user, pool, Right(pools[pool.pk]), by=by, address=address)
    if limits:
        Quota.objects.update_or_create(user=user, pool=None, defaults=limits)


def _clean(name: str) -> str:
    try:
        return clean_text(name) if name.strip() else ""
    except ValueError as error:
        raise Malformed(Sentence("name: {error}.", error=error), fields={"name": [str(error)]}) from error


def _name_taken(name: str) -> OrchestratorError:
    sentence = Sentence("The name {name} is taken. Choose another.", name=name)
    return Conflict(sentence, fields={"username": [sentence]})


def _wrong_list(sentence: str) -> Malformed:
    return Malformed(sentence, fields={"csv": [sentence]})
