"""Addresses for a person's notifications: add, test, remove."""

import re
from collections.abc import Sequence

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.utils import timezone

from orchestrator.exceptions import Malformed, Sentence
from orchestrator.models import Notice, NoticeTarget, Occasion
from orchestrator.people import secrets
from orchestrator.people.notices import delivery
from orchestrator.sentences.notices import sentence_for

LONGEST_ADDRESS = 1000
# Ways to notify people, in the order of the form, which has the words.
KINDS = {
    "email": "E-mail",
    "slack": "Slack, by a webhook",
    "ntfy": "Phone, by ntfy",
    "other": "Other, by an Apprise address",
}
_SLACK = "https://hooks.slack.com/services/"
_TOPIC = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
MOST_TARGETS = 10


def add(user: AbstractBaseUser, url: str, occasions: Sequence[str]) -> NoticeTarget:
    """Check and store an address.

    Raises:
        Malformed: the address is invalid or inside the network, or an occasion is unknown.
    """
    _check(user, url, occasions)
    answer = delivery.post(url)
    if answer.why:
        refusal = sentence_for(answer.why)
        raise Malformed(refusal, fields={"url": [refusal]})
    shown = url if url.startswith("email:") else answer.shown
    return NoticeTarget.objects.create(
        user_id=user.pk,
        sealed=secrets.seal(url),
        shown=shown[:200],
        occasions=sorted(set(occasions)),
    )


def kinds() -> dict[str, str]:
    """The kinds that this server can send; mail of its own needs an account."""
    return {name: words for name, words in KINDS.items() if name != "email" or settings.ENVIRONMENT.mail_url}


def address_of(kind: str, text: str) -> str:
    """The address that a form means by a kind and a text.

    Raises:
        Malformed: the text is no address of this kind.
    """
    address = text.strip()
    match kind:
        case "email":
            return f"email:{address.removeprefix('email:')}"
        case "slack":
            if not address.startswith(_SLACK):
                raise _wrong(
                    "url",
                    Sentence(
                        "give the address of an incoming webhook, which begins with {slack}", slack=_SLACK
                    ),
                )
            return address
        case "ntfy":
            topic = address.removeprefix("https://ntfy.sh/")
            if _TOPIC.fullmatch(topic):
                return f"ntfys://{topic}"
            if address.startswith("https://"):
                return f"ntfys://{address.removeprefix('https://')}"
            raise _wrong(
                "url", "give a topic of letters, digits, - and _, or https:// with your server and topic"
            )
        case "other":
            return address
    raise _wrong("kind", Sentence("choose from {kinds}", kinds=", ".join(KINDS)))


def try_out(target: NoticeTarget) -> str | None:
    """Send a test message; returns why it failed, or None."""
    notice = Notice.objects.create(
        target=target,
        title="Test from Berth",
        body="Notifications will arrive here.",
        created_at=timezone.now(),
    )
    delivery.deliver(notice)
    target.refresh_from_db()
    return target.last_error or None


def _check(user: AbstractBaseUser, url: str, occasions: Sequence[str]) -> None:
    if not url.strip() or len(url) > LONGEST_ADDRESS or not url.isprintable():
        raise _wrong(
            "url",
            Sentence(
                "give an address of at most {longest_address:,} characters, such as slack://...",
                longest_address=LONGEST_ADDRESS,
            ),
        )
    if url.startswith("email:") and ("@" not in url or any(letter in url for letter in "?&/ ,;")):
        raise _wrong("url", "give email: and one mail address, such as email:ana@lab.org")
    if url.startswith("email:") and not settings.ENVIRONMENT.mail_url:
        raise _wrong(
            "url", "this server has no mail account; give a mailtos:// address with your own account"
        )
    unknown = [each for each in occasions if each not in Occasion.values]
    if unknown or not occasions:
        raise _wrong("occasions", Sentence("choose from {values}", values=", ".join(Occasion.values)))
    if NoticeTarget.objects.filter(user_id=user.pk).count() >= MOST_TARGETS:
        raise _wrong(
            "url",
            Sentence(
                "you have {most_targets} addresses, which is the limit; remove one first",
                most_targets=MOST_TARGETS,
            ),
        )


def _wrong(field: str, sentence: str) -> Malformed:
    return Malformed(
        Sentence("{field}: {sentence}", field=field, sentence=sentence), fields={field: [sentence]}
    )
