"""The table of jobs as its address asks for it: filters, columns, order, groups, and any window of its rows."""

import math
import threading
import time
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from statistics import mean
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib.auth.models import User
from django.db import connection
from django.db.models import F, JSONField, QuerySet
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Coalesce
from django.http import QueryDict
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as mark
from pydantic import ValidationError

from berth.shared import words
from berth.shared.arguments import number_or_text
from berth.shared.language import text
from berth.shared.metric_names import in_loss_order, lower_is_better
from dashboard.parts import job_columns
from dashboard.parts.job_columns import ARGUMENT, METRIC, Column
from dashboard.parts.rows import recorded
from orchestrator.api.resources.job_filters import JobFilters, find_jobs
from orchestrator.exceptions import Malformed
from orchestrator.models import Job
from orchestrator.models.jobs import JobQuerySet

FILTERS = ("q", "state", "owner", "tag", "project", "pool", "array", "sweep", "arg")
STATE = (*FILTERS, "cols", "sort", "group", "by")  # all that a view keeps
GROUPS = {
    "array": mark("array"),
    "sweep": mark("sweep"),
    "tag": mark("tag"),
    "project": mark("project"),
    "owner": mark("owner"),
    "state": mark("state"),
    "pool": mark("pool"),
}
SAMPLED = 300  # newest jobs whose arguments and metrics are offered as columns
MOST_OFFERED = 60
MOST_GROUPS = 300
MOST_KEYS = 1200  # letters of one parameter
NEWEST_FIRST = "-submitted"


@dataclass(frozen=True, slots=True)
class Names:
    """What the newest matching jobs have that could be a column."""

    arguments: list[str]
    metrics: list[str]


@dataclass(frozen=True, slots=True)
class JobTable:
    """The address's wishes, read; what it names wrongly is left out, and a wrong filter matches nothing."""

    user: User
    wanted: dict[str, str]
    columns: list[Column]
    sort: str
    group: str
    measure: str
    jobs: QuerySet[Job] = field(repr=False)

    @property
    def query(self) -> str:
        """The address of this view, without windows and cursors."""
        return urlencode(self.wanted)

    def address(self, **changes: str) -> str:
        merged = {**self.wanted, **changes}
        return "?" + urlencode({name: text for name, text in merged.items() if text})


def read_table(user: User, given: QueryDict) -> JobTable:
    wanted = {name: str(given[name]).replace("\0", "")[:MOST_KEYS] for name in STATE if given.get(name)}
    if boxes := given.getlist("col"):  # a form without scripts
        wanted["cols"] = ",".join(boxes)[:MOST_KEYS]
    keys = wanted.get("cols", "").split(",") if "cols" in wanted else usual_columns(user)
    chosen = [job_columns.column_of(key) for key in dict.fromkeys(keys)]
    columns = [column for column in chosen if column and column.key != "name"][: job_columns.MOST_CHOSEN]
    sorted_by = job_columns.column_of(wanted.get("sort", "").removeprefix("-"))
    is_known = sorted_by is not None and (sorted_by.order is not None or sorted_by.key == "loss")
    return JobTable(
        user,
        wanted,
        columns,
        wanted["sort"] if is_known else NEWEST_FIRST,
        wanted.get("group", "") if _groups_by(wanted.get("group", "")) else "",
        wanted.get("by", ""),
        filtered(Job.objects.visible_to(user), wanted),
    )


def usual_columns(user: User) -> list[str]:
    keys = list(job_columns.USUAL)
    if user.is_staff:
        keys.insert(keys.index("devices"), "owner")
    return keys


def _groups_by(key: str) -> bool:
    return key in GROUPS or (key.startswith(ARGUMENT) and len(key) <= job_columns.LONGEST_KEY)


def filtered(found: JobQuerySet, wanted: dict[str, str]) -> QuerySet[Job]:
    """Apply the address's filters by the API's rules; an invalid filter matches nothing."""
    given = {name: wanted[name] for name in FILTERS if wanted.get(name)}
    sweep, argument = given.pop("sweep", ""), given.pop("arg", "")
    try:
        jobs = find_jobs(found, JobFilters.model_validate(given))[0]
        if sweep:
            jobs = jobs.filter(trial__sweep=UUID(sweep))
    except (ValidationError, Malformed, ValueError):
        return found.none()
    if not argument:
        return jobs
    name, _, text = argument.partition("=")
    at = KeyTransform(name, "arguments")
    return (
        jobs.alias(argument=at).filter(argument=number_or_text(text))
        if text
        else jobs.filter(arguments__has_key=name)
    )


def names_of(jobs: QuerySet[Job]) -> Names:
    arguments: set[str] = set()
    metrics: set[str] = set()
    for own, values in jobs.order_by("-id").values_list("arguments", "last_values")[:SAMPLED]:
        arguments.update(own)
        metrics.update(values)
    losses = in_loss_order(metrics)
    return Names(
        sorted(arguments)[:MOST_OFFERED], [*losses, *sorted(metrics.difference(losses))][:MOST_OFFERED]
    )


def _order(table: JobTable, names: Names) -> list[Any]:
    """Columns to order by; a job without a value comes last either way."""
    key = table.sort.removeprefix("-")
    down = table.sort.startswith("-")
    column = job_columns.column_of(key)
    if column is None or key == "submitted":
        return ["-pk" if down else "pk"]
    order: Any = _main_loss(names) if key == "loss" else column.order
    if order is None:
        return ["-pk"]
    expression: Any = F(order) if isinstance(order, str) else order
    # SQLite has nulls first: only where that is wrong is it told, since it then uses no index.
    is_first = not column.always and not (down and connection.vendor == "sqlite")
    last = True if is_first else None
    ordered = expression.desc(nulls_last=last) if down else expression.asc(nulls_last=last)
    return [ordered, "-pk"]


def _main_loss(names: Names) -> Any:
    losses = in_loss_order(names.metrics)
    keys = [KeyTransform(name, "last_values") for name in losses]
    return None if not keys else keys[0] if len(keys) == 1 else Coalesce(*keys, output_field=JSONField())


class Orders:
    """Ids in an order that no index has, for a while: the windows of one table are read one after the other."""

    KEEPS_S = 20
    MOST = 4  # of 100,000 ids each takes about 10 MB

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, str], tuple[float, list[UUID]]] = OrderedDict()
        self._lock = threading.Lock()

    def ids(self, table: JobTable, ordered: QuerySet[Job]) -> list[UUID]:
        key = (table.user.pk, f"{table.query}&{table.sort}")
        with self._lock:
            ends_at, ids = self._kept.get(key, (0.0, []))
        if time.monotonic() < ends_at:
            return ids
        ids = list(ordered.values_list("pk", flat=True))
        with self._lock:
            self._kept[key] = (time.monotonic() + self.KEEPS_S, ids)
            self._kept.move_to_end(key)
            while len(self._kept) > self.MOST:
                self._kept.popitem(last=False)
        return ids


_orders = Orders()


def window(table: JobTable, start: int, count: int, *, before: UUID | None = None) -> list[Job]:
    """Jobs of the table from a place on.

    Args:
        before: in the usual order, the job that the window follows: its rows are found by the index, however deep.
    """
    if table.sort == NEWEST_FIRST:
        jobs = table.jobs.filter(pk__lt=before) if before else table.jobs
        first = 0 if before else start
        ids = list(jobs.order_by("-pk").values_list("pk", flat=True)[first : first + count])
    elif _is_indexed(table):
        ordered = table.jobs.order_by(*_order(table, Names([], [])))
        ids = list(ordered.values_list("pk", flat=True)[start : start + count])
    else:
        ids = _orders.ids(table, table.jobs.order_by(*_order(table, names_of(table.jobs))))[
            start : start + count
        ]
    # Seen with today's rights: the order may be some seconds old.
    rows = (
        Job.objects.visible_to(table.user)
        .select_related("owner", "pool", "array", "trial__sweep")
        .in_bulk(ids)
    )
    return [rows[pk] for pk in ids if pk in rows]


def _is_indexed(table: JobTable) -> bool:
    return table.sort.removeprefix("-") in {"submitted", "name"}


@dataclass(slots=True)
class Group:
    """Jobs that have one value in common."""

    title: str
    address: str
    count: int = 0
    states: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    values: list[tuple[float, UUID]] = field(default_factory=list)
    best: tuple[float, UUID] | None = None

    @property
    def said(self) -> str:
        return ", ".join(
            f"{count} {text(state.replace('_', ' '))}" for state, count in sorted(self.states.items())
        )

    @property
    def mean(self) -> str:
        return words.value(mean(value for value, _ in self.values)) if self.values else ""

    @property
    def best_value(self) -> str:
        return words.value(self.best[0]) if self.best else ""


def groups(table: JobTable, measure: str) -> list[Group]:
    """The groups of all matching jobs, best first; values that are no numbers count for neither mean nor best."""
    expression: Any = {
        "array": F("array_id"),
        "sweep": F("trial__sweep_id"),
        "tag": F("tags"),
        "owner": F("owner__username"),
    }.get(table.group) or (
        KeyTransform(table.group.removeprefix(ARGUMENT), "arguments")
        if ":" in table.group
        else F(f"{table.group}_id" if table.group in {"pool", "project"} else table.group)
    )
    found: dict[Any, Group] = {}
    rows = table.jobs.annotate(group_key=expression, measured=KeyTransform(measure, "last_values"))
    for pk, state, keys, value in rows.values_list("pk", "state", "group_key", "measured").iterator():
        for key in _group_keys(table, keys):
            group = found.get(key) or found.setdefault(key, Group("", ""))
            group.count += 1
            group.states[state] += 1
            number = recorded(value)
            if number is not None and math.isfinite(number):
                group.values.append((number, pk))
    pick = max if lower_is_better(measure) is False else min
    for group in found.values():
        group.best = pick(group.values, default=None)
    _name(table, found)
    sign = -1 if pick is max else 1
    return sorted(
        found.values(), key=lambda one: (one.best is None, sign * one.best[0] if one.best else 0, -one.count)
    )


def _group_keys(table: JobTable, value: Any) -> list[Any]:
    """The groups that a job is in: one for each tag; NaN as text, since it equals nothing."""
    if table.group == "tag":
        return value or [None]
    return ["NaN" if isinstance(value, float) and math.isnan(value) else value]


def _name(table: JobTable, found: dict[Any, Group]) -> None:
    """Titles and addresses: a group opens as the table with one filter more."""
    titles: dict[Any, str] = {}
    kind = table.group.partition(":")[0]
    if kind == "array":
        members = Job.objects.filter(
            array__in=[key for key in found if key][:MOST_GROUPS], array_index__isnull=False
        )
        titles = {
            key: name.rpartition("[")[0] or name
            for key, name in members.order_by("-pk").values_list("array_id", "name")
        }
    elif kind == "sweep":
        titles = dict(
            Job.objects.filter(trial__sweep__in=[key for key in found if key][:MOST_GROUPS])
            .values_list("trial__sweep_id", "trial__sweep__name").distinct()
        )  # fmt: skip
    for key, group in found.items():
        title = words.value(key) if isinstance(key, int | float) else str(key)
        title = text(title.replace("_", " ")) if kind == "state" else title
        group.title = (
            gettext("without {kind}").format(kind=gettext(kind)) if key is None else titles.get(key, title)
        )
        if kind in {"array", "sweep"} and key:
            group.title += f" #{str(key)[-8:]}"
        if key is None:
            continue
        name = table.group.removeprefix(ARGUMENT)
        given = f"{name}={key}" if kind == "arg" else str(key)
        group.address = table.address(group="", by="", **{kind: given})


def measure_of(table: JobTable, names: Names) -> str:
    """The metric whose mean and best groups show: the one asked for, the first chosen column, else the main loss."""
    chosen = [column.key.removeprefix(METRIC) for column in table.columns if column.key.startswith(METRIC)]
    return table.measure or next(iter([*chosen, *names.metrics]), "")
