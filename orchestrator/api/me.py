"""Who the caller is; a token does not say whose it is."""

from ninja import Router
from pydantic import BaseModel, Field

from orchestrator.api.auth import ApiRequest

router = Router()


class PersonOut(BaseModel):
    username: str
    is_operator: bool = Field(description="may see everybody's jobs and change pools and devices")
    scope: str = Field(description="what the credentials of this request allow: read, write or admin")


@router.get("", response=PersonOut)
def get_me(request: ApiRequest) -> object:
    """The person whose token or session this is."""
    return {
        "username": request.user.get_username(),
        "is_operator": request.user.is_staff,
        "scope": request.token_scope,
    }
