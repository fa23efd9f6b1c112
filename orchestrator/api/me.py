"""Who the caller is; a token does not say whose it is."""

from ninja import Router
from pydantic import BaseModel, Field

from orchestrator.api.auth import ApiRequest
from orchestrator.models import Role
from orchestrator.people import quotas, rights

router = Router()


class StandingOut(BaseModel):
    """What the caller uses of their limits; null: no limit."""

    pool: str | None = Field(description="null: over all pools")
    devices: int = Field(description="held by running jobs now")
    max_devices: int | None
    queued: int
    max_queued: int | None
    gpu_hours: float = Field(description="in the last seven days")
    gpu_hours_a_week: float | None
    weight: float | None = Field(description="of the fair share; null: 1")


class PersonOut(BaseModel):
    username: str
    role: Role
    is_operator: bool = Field(description="may see others' jobs and change devices, at least in one pool")
    scope: str = Field(description="what the credentials of this request allow: read, write or admin")
    limits: list[StandingOut]


@router.get("", response=PersonOut)
def get_me(request: ApiRequest) -> object:
    """The person whose token or session this is."""
    return {
        "username": request.user.get_username(),
        "role": rights.role_of(request.user),
        "is_operator": rights.administers(request.user),
        "scope": request.token_scope,
        "limits": quotas.standing(request.user),
    }
