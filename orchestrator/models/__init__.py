"""The rows of the database, one file per noun; import them from here."""

from orchestrator.models.attempts import Attempt, AttemptState, Checkpoint, ExitKind, Lease
from orchestrator.models.audit import AppendOnly, AuditEntry
from orchestrator.models.bookings import Booking, BookingKind
from orchestrator.models.checkouts import Checkout, CheckoutState
from orchestrator.models.credentials import AgentRules, IdempotencyKey, JobSecret, Scope, SessionPass, Token
from orchestrator.models.datasets import Dataset, DatasetRoot
from orchestrator.models.environments import Environment, EnvironmentState
from orchestrator.models.events import JobEvent
from orchestrator.models.federations import (
    FEDERATION_VARIABLE,
    Federation,
    FederationInvitation,
    FederationMember,
    FederationState,
)
from orchestrator.models.fetches import Fetch, FetchState
from orchestrator.models.jobs import (
    FINAL_STATES,
    LEASED_STATES,
    WAITING_STATES,
    Job,
    JobArray,
    JobState,
    JobView,
    StopReason,
)
from orchestrator.models.ledger import DeviceSpan, Use
from orchestrator.models.lending import Lender, LendingSystem, Pilot, PilotState
from orchestrator.models.model_versions import ModelRecipe, ModelVersion, RecipeOutcome
from orchestrator.models.notices import Notice, NoticeTarget, Occasion
from orchestrator.models.outbox import Errand, Outbox, SchedulerTerm
from orchestrator.models.people import Invitation, LastSeen, Person, PoolRight, Right, Role, SignInFailure
from orchestrator.models.pools import (
    CPU_POOL,
    LOCAL_NODE,
    AdminState,
    Device,
    Health,
    Network,
    Pool,
    Sharing,
    Visibility,
)
from orchestrator.models.projects import MemberRole, Project, ProjectMember
from orchestrator.models.quotas import Quota
from orchestrator.models.scheduling import (
    LoneRun,
    OwnerUse,
    PlannedMemory,
    SchedulerNotes,
    Slowdown,
    StartPromise,
)
from orchestrator.models.services import Service, ServiceKey, ServiceReplica, ServiceState
from orchestrator.models.sharing import LinkKind, Note, ShareLink
from orchestrator.models.sweeps import SETTINGS_VARIABLE, RungReport, Sweep, SweepState, SweepTrial

__all__ = [
    "CPU_POOL",
    "FEDERATION_VARIABLE",
    "FINAL_STATES",
    "LEASED_STATES",
    "LOCAL_NODE",
    "SETTINGS_VARIABLE",
    "WAITING_STATES",
    "AdminState",
    "AgentRules",
    "AppendOnly",
    "Attempt",
    "AttemptState",
    "AuditEntry",
    "Booking",
    "BookingKind",
    "Checkout",
    "CheckoutState",
    "Checkpoint",
    "Dataset",
    "DatasetRoot",
    "Device",
    "DeviceSpan",
    "Environment",
    "EnvironmentState",
    "Errand",
    "ExitKind",
    "Federation",
    "FederationInvitation",
    "FederationMember",
    "FederationState",
    "Fetch",
    "FetchState",
    "Health",
    "IdempotencyKey",
    "Invitation",
    "Job",
    "JobArray",
    "JobEvent",
    "JobSecret",
    "JobState",
    "JobView",
    "LastSeen",
    "Lease",
    "Lender",
    "LendingSystem",
    "LinkKind",
    "LoneRun",
    "MemberRole",
    "ModelRecipe",
    "ModelVersion",
    "Network",
    "Note",
    "Notice",
    "NoticeTarget",
    "Occasion",
    "Outbox",
    "OwnerUse",
    "Person",
    "Pilot",
    "PilotState",
    "PlannedMemory",
    "Pool",
    "PoolRight",
    "Project",
    "ProjectMember",
    "Quota",
    "RecipeOutcome",
    "Right",
    "Role",
    "RungReport",
    "SchedulerNotes",
    "SchedulerTerm",
    "Scope",
    "Service",
    "ServiceKey",
    "ServiceReplica",
    "ServiceState",
    "SessionPass",
    "ShareLink",
    "Sharing",
    "SignInFailure",
    "Slowdown",
    "StartPromise",
    "StopReason",
    "Sweep",
    "SweepState",
    "SweepTrial",
    "Token",
    "Use",
    "Visibility",
]
