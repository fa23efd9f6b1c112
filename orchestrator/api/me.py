"""Who the caller is; a token does not say whose it is."""

from ninja import Router
from pydantic import BaseModel, Field

from orchestrator import rights
from orchestrator.api.auth import ApiRequest
from orchestrator.models import Role

router = Router()


class PersonOut(BaseModel):
    username: str
    role: Role
    is_operator: bool = Field(description="may see others' jobs and change devices, at least in one pool")
    scope: str = Field(description="what the credentials of this request allow: read, write or admin")


@router.get("", response=PersonOut)
def get_me(request: ApiRequest) -> object:
    """The person whose token or session this is."""
    return {
        "username": request.user.get_username(),
        "role": rights.role_of(request.user),
        "is_operator": rights.administers(request.user),
        "scope": request.token_scope,
    }
