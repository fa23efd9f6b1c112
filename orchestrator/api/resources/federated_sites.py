"""The door for sites at other Berths: each gets and sends the messages of its own federation, by its invitation alone."""

from typing import Annotated

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from ninja import Path, Query, Router
from ninja.security.base import AuthBase
from pydantic import BaseModel, Field

from orchestrator.api.http import rate
from orchestrator.api.http.authentication import SITE_PREFIX, ApiRequest
from orchestrator.api.http.downloads import send_file
from orchestrator.api.http.errors import Unauthenticated
from orchestrator.exceptions import Malformed, Sentence, TooLarge
from orchestrator.federations import door, invitations
from orchestrator.models import FederationInvitation

MESSAGE_HEADER = "X-Message-Id"


class SiteGate(AuthBase):
    """Authenticate a site by its invitation; no person's token or session opens this."""

    openapi_type = "apiKey"
    openapi_in = "header"
    openapi_name = "Authorization"
    openapi_description = "`Token bsite_...`: the secret of a site's invitation."

    def __call__(self, request: HttpRequest) -> FederationInvitation:
        """Let the site pass.

        Raises:
            Unauthenticated: this is no invitation.
            Forbidden, Over: as ``invitations.site_of``.
            TooMany: the site sends requests too fast.
        """
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Token" or not secret.startswith(SITE_PREFIX):
            raise Unauthenticated(
                "Send 'Authorization: Token <secret>', with the secret of a site's invitation."
            )
        try:
            site = invitations.site_of(secret)
        except invitations.UnknownSite as error:
            raise Unauthenticated(str(error)) from error
        rate.requests.take(f"site-{site.pk}")
        return site


router = Router(auth=SiteGate())


class RoundsOut(BaseModel):
    """What a site trains with."""

    protocol: int = Field(description="of the messages")
    federation: str = Field(description="its name")
    name: str = Field(description="of the site")
    number: int = Field(description="of the site, from 0")
    sites: int = Field(description="how many there are")
    rounds: int = Field(description="of training and summing")
    epochs: int = Field(description="of a site in a round")
    batch_size: int = Field(description="of a site")
    learning_rate: float = Field(description="of a site")
    proximal: float = Field(description="above 0 is FedProx")
    clip: float | None = Field(description="largest norm of an update; null: no privacy")
    noise: float | None = Field(description="on the sum, in units of clip")
    delta: float = Field(description="chance with which privacy may fail")
    patience_s: float = Field(description="longest time for one answer")
    seed: int = Field(description="of the first weights")


class NextQuery(BaseModel):
    done: str = Field("", max_length=64, description="the name of the message that was read; it is removed")


class MessagePartQuery(BaseModel):
    offset: int = Field(ge=0, description="of this part in the message")
    size: int = Field(ge=1, description="of the whole message, in bytes")


class ReceivedOut(BaseModel):
    received_bytes: int = Field(description="how much of the message is here; go on there")


@router.get("", response=RoundsOut)
def get_rounds(request: ApiRequest) -> RoundsOut:
    """The settings of the rounds that a site takes part in; the first request joins it."""
    return RoundsOut(**door.settings_of(_site(request)))


@router.get(
    "/messages",
    response={204: None},
    openapi_extra={
        "responses": {200: {"description": "A message", "content": {"application/octet-stream": {}}}}
    },
)
def get_next_message(request: ApiRequest, query: Query[NextQuery]) -> HttpResponseBase:
    """The oldest message to a site, named by the header X-Message-Id; 204 if no message waits."""
    found = door.next_message(_site(request), query.done)
    if found is None:
        return HttpResponse(status=204)
    name, file = found
    answer = send_file(request, file, "message")
    answer.headers[MESSAGE_HEADER] = name
    return answer


@router.put("/messages/{message}", response=ReceivedOut)
def send_message(
    request: ApiRequest, message: Annotated[str, Path()], part: Query[MessagePartQuery]
) -> ReceivedOut:
    """Send a part of a message, as the body; may be sent twice, and a whole message is passed on once."""
    if int(request.META.get("CONTENT_LENGTH") or 0) > door.PART_BYTES:
        raise TooLarge(
            Sentence(
                "A part has at most {part_bytes:,} bytes; send a message in several.",
                part_bytes=door.PART_BYTES,
            )
        )
    if not request.body:
        raise Malformed("This part of a message is empty.")
    here = door.take_part(_site(request), message, part.offset, part.size, request.body)
    return ReceivedOut(received_bytes=here)


def _site(request: HttpRequest) -> FederationInvitation:
    site: FederationInvitation = request.auth  # type: ignore[attr-defined]  # ninja sets what the gate returns
    return site
