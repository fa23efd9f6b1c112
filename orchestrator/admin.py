"""Django's admin: pools, devices and datasets can be changed, history is read-only."""

from typing import TYPE_CHECKING, Any, Self

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse

from orchestrator.exceptions import Impossible, OrchestratorError
from orchestrator.jobs import datasets
from orchestrator.live import wakeups
from orchestrator.models import (
    AdminState,
    Attempt,
    AuditEntry,
    Booking,
    Checkpoint,
    Dataset,
    DatasetRoot,
    Device,
    Health,
    Job,
    JobEvent,
    Lease,
    Person,
    Pool,
    PoolRight,
    Quota,
    Token,
)
from orchestrator.people import audit, passwords, quotas, tokens

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin, TabularInline
else:
    # Django's classes take type arguments from the type checker only.
    class _Generic:
        def __class_getitem__(cls, _: object) -> type[Self]:
            return cls

    class ModelAdmin(_Generic, admin.ModelAdmin): ...

    class TabularInline(_Generic, admin.TabularInline): ...


admin.site.site_header = admin.site.site_title = "Berth"
admin.site.index_title = "Administration"


class _ReadOnly:
    """Mixin for an admin or inline that is read-only."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class _Audited:
    """Mixin for an admin whose changes are recorded in the audit."""

    def log_addition(self, request: HttpRequest, obj: Model, message: Any) -> Any:
        _note(request, obj, "added", "")
        return super().log_addition(request, obj, message)  # type: ignore[misc]  # a mixin's

    def log_change(self, request: HttpRequest, obj: Model, message: Any) -> Any:
        _note(request, obj, "changed", _fields_of(message))
        return super().log_change(request, obj, message)  # type: ignore[misc]  # a mixin's

    def log_deletions(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        for obj in queryset:
            _note(request, obj, "deleted", "")
        return super().log_deletions(request, queryset)  # type: ignore[misc]  # a mixin's


def _note(request: HttpRequest, obj: Model, what: str, details: str) -> None:
    with audit.in_english():
        kind = str(obj._meta.verbose_name)
    action = f"{kind.replace(' ', '_')}.{what}"
    text = f"{what.capitalize()} in the admin pages{details}."
    audit.record(
        request.user.get_username(), action, f"{kind} {obj}", text, address=audit.address_of(request)
    )


def _fields_of(message: Any) -> str:
    """The fields that Django's change message names, without values: they may be secret."""
    parts = message if isinstance(message, list) else []
    names = [name for part in parts for name in part.get("changed", {}).get("fields", [])]
    return f": {', '.join(names)}" if names else ""


def _wake() -> None:
    """Request a scheduling pass and update live views after devices changed."""
    wakeups.schedule()
    wakeups.publish("devices")


@admin.register(Pool)
class PoolAdmin(_Audited, ModelAdmin[Pool]):
    list_display = ["name", "description", "network"]

    def get_readonly_fields(self, request: HttpRequest, obj: Pool | None = None) -> list[str]:
        return ["name"] if obj else []  # the name is the key: a new name would create a second pool

    def save_model(self, request: HttpRequest, obj: Pool, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        _wake()


@admin.register(Device)
class DeviceAdmin(_Audited, ModelAdmin[Device]):
    """The agent adds devices; people choose their pool and whether they accept jobs."""

    list_display = ["label", "name", "pool", "admin_state", "health", "health_reason"]
    list_filter = ["pool", "admin_state", "health", "kind"]
    search_fields = ["id", "name"]
    actions = ["enable", "drain", "disable", "declare_sound"]

    def get_readonly_fields(self, request: HttpRequest, obj: Device | None = None) -> list[str]:
        return [field.name for field in Device._meta.fields if field.name not in {"pool", "admin_state"}]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Device | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Device, form: Any, change: bool) -> None:
        # Save only what people choose: the agent writes the other columns concurrently.
        obj.save(update_fields=["pool", "admin_state"])
        _wake()

    @admin.action(description="Enable: accept jobs", permissions=["change"])
    def enable(self, request: HttpRequest, devices: QuerySet[Device]) -> None:
        self._set(request, devices, AdminState.ENABLED)

    @admin.action(description="Drain: finish running jobs, start nothing new", permissions=["change"])
    def drain(self, request: HttpRequest, devices: QuerySet[Device]) -> None:
        self._set(request, devices, AdminState.DRAINING)

    @admin.action(description="Disable: out of use until enabled", permissions=["change"])
    def disable(self, request: HttpRequest, devices: QuerySet[Device]) -> None:
        self._set(request, devices, AdminState.DISABLED)

    @admin.action(description="Mark faulty devices as working again", permissions=["change"])
    def declare_sound(self, request: HttpRequest, devices: QuerySet[Device]) -> None:
        """Fenced devices stay fenced until it is proven that nothing runs on them."""
        count = devices.filter(health=Health.FAULTY).update(health=Health.OK, health_why={})
        self._report(request, count, "marked as working")

    def _set(self, request: HttpRequest, devices: QuerySet[Device], state: AdminState) -> None:
        for device in devices:
            _note(request, device, "state", f": {device.admin_state} -> {state}")
        self._report(request, devices.update(admin_state=state), f"now {state.label.lower()}")

    def _report(self, request: HttpRequest, count: int, words: str) -> None:
        transaction.on_commit(_wake)
        self.message_user(request, f"{count} {'device is' if count == 1 else 'devices are'} {words}.")


class DatasetRootForm(forms.ModelForm):  # type: ignore[type-arg]  # takes arguments from the type checker only
    class Meta:
        model = DatasetRoot
        fields = ("name", "path")

    def clean_path(self) -> str:
        path = str(self.cleaned_data["path"])
        try:
            datasets.check_root(path)
        except OrchestratorError as error:
            raise forms.ValidationError(str(error)) from error
        return path


@admin.register(DatasetRoot)
class DatasetRootAdmin(_Audited, ModelAdmin[DatasetRoot]):
    form = DatasetRootForm
    list_display = ["name", "path"]

    def get_readonly_fields(self, request: HttpRequest, obj: DatasetRoot | None = None) -> list[str]:
        return ["name"] if obj else []


@admin.register(Dataset)
class DatasetAdmin(_Audited, ModelAdmin[Dataset]):
    list_display = ["reference", "root", "path", "owner", "size_bytes", "created_at"]
    list_filter = ["root"]
    search_fields = ["name", "path"]
    # Jobs refer to these fields, so they never change. Another path is another version, registered through the API.
    readonly_fields = [
        "name",
        "version",
        "root",
        "path",
        "sha256",
        "size_bytes",
        "owner",
        "created_at",
    ]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


class AttemptInline(_ReadOnly, TabularInline[Attempt, Job]):
    model = Attempt
    fields = ["number", "state", "kind", "exit_detail", "created_at", "ended_at", "run_s"]
    readonly_fields = ["exit_detail"]
    ordering = ["number"]
    show_change_link = True


class EventInline(_ReadOnly, TabularInline[JobEvent, Job]):
    model = JobEvent
    fields = ["number", "at", "from_state", "to_state", "actor", "reason"]
    readonly_fields = ["reason"]
    ordering = ["number"]


class CheckpointInline(_ReadOnly, TabularInline[Checkpoint, Job]):
    model = Checkpoint
    fields = ["name", "step", "attempt_number", "source", "size_bytes", "created_at"]


@admin.register(Job)
class JobAdmin(_ReadOnly, ModelAdmin[Job]):
    """Read-only: jobs change only through their lifecycle."""

    list_display = ["short_id", "name", "owner", "pool", "state", "gpus", "submitted_at"]
    list_filter = ["state", "pool", "owner"]
    list_select_related = ["owner", "pool"]
    search_fields = ["id", "name"]
    inlines = [AttemptInline, CheckpointInline, EventInline]


class LeaseInline(_ReadOnly, TabularInline[Lease, Attempt]):
    model = Lease
    fields = ["device", "rank", "memory_bytes", "started_at", "ended_at"]


@admin.register(Attempt)
class AttemptAdmin(_ReadOnly, ModelAdmin[Attempt]):
    list_display = ["__str__", "state", "kind", "exit_detail", "created_at", "ended_at"]
    list_filter = ["state", "kind"]
    list_select_related = ["job"]
    inlines = [LeaseInline]


@admin.register(Lease)
class LeaseAdmin(_ReadOnly, ModelAdmin[Lease]):
    list_display = ["attempt", "device", "rank", "memory_bytes", "started_at", "ended_at"]
    list_filter = ["device"]
    list_select_related = ["attempt", "device"]


@admin.register(JobEvent)
class JobEventAdmin(_ReadOnly, ModelAdmin[JobEvent]):
    list_display = ["job_id", "number", "at", "from_state", "to_state", "actor", "reason"]
    list_filter = ["to_state"]
    ordering = ["-at"]


@admin.register(Token)
class TokenAdmin(_ReadOnly, ModelAdmin[Token]):
    """Owners create tokens; here they can only be revoked."""

    list_display = ["prefix", "name", "user", "scope", "expires_at", "last_used_at", "revoked_at"]
    list_filter = ["scope"]
    list_select_related = ["user"]
    exclude = ["digest"]
    actions = ["revoke"]

    @admin.action(description="Revoke: they stop working at once", permissions=["view"])
    def revoke(self, request: HttpRequest, chosen: QuerySet[Token]) -> None:
        if not request.user.is_superuser:
            self.message_user(request, "Only a superuser may revoke other people's tokens.", level="ERROR")
            return
        for token in chosen:
            tokens.revoke(token, by=request.user, address=audit.address_of(request))
        self.message_user(request, f"{len(chosen)} revoked.")


class QuotaForm(forms.ModelForm):  # type: ignore[type-arg]  # takes arguments from the type checker only
    class Meta:
        model = Quota
        fields = ("user", "pool", *quotas.LIMITS)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not self.errors:
            for name, value in cleaned.items():
                setattr(self.instance, name, value)
            try:
                quotas.check_quota(self.instance)
            except Impossible as error:
                raise forms.ValidationError(error.fields) from error
        return cleaned


@admin.register(Quota)
class QuotaAdmin(_Audited, ModelAdmin[Quota]):
    form = QuotaForm
    list_display = ["__str__", *quotas.LIMITS]
    list_select_related = ["user"]

    def save_model(self, request: HttpRequest, obj: Quota, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        wakeups.schedule()


@admin.register(Person)
class PersonAdmin(_Audited, ModelAdmin[Person]):
    """People without a row are submitters; staff are admins."""

    list_display = ["user", "role"]
    list_filter = ["role"]
    list_select_related = ["user"]


@admin.register(PoolRight)
class PoolRightAdmin(_Audited, ModelAdmin[PoolRight]):
    list_display = ["user", "pool", "right"]
    list_filter = ["pool", "right"]
    list_select_related = ["user"]


@admin.register(Booking)
class BookingAdmin(_Audited, ModelAdmin[Booking]):
    """Bookings are made through the API or the Pools page, which check them; here they can be read and deleted."""

    list_display = ["name", "kind", "pool", "start", "until", "weekly", "created_by"]
    list_filter = ["pool", "kind"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Booking | None = None) -> bool:
        return False


@admin.register(AuditEntry)
class AuditAdmin(_ReadOnly, ModelAdmin[AuditEntry]):
    list_display = ["at", "actor", "action", "subject", "text", "address"]
    list_filter = ["action"]
    search_fields = ["actor", "subject", "text"]


class AuditedUserAdmin(_Audited, UserAdmin):  # type: ignore[type-arg]  # takes arguments from the type checker only
    """Django's user admin, with an audit; a password that an admin set opens one sign-in, where another is chosen."""

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if not change:
            passwords.expect_change(obj)

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> HttpResponse:  # noqa: A002
        answer: HttpResponse = super().user_change_password(request, id, form_url)
        if answer.status_code == 302 and id != str(request.user.pk):
            passwords.expect_change(User.objects.get(pk=id))
        return answer


admin.site.unregister(User)
admin.site.register(User, AuditedUserAdmin)
