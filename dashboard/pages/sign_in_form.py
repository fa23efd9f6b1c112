"""The form behind the sign-in page."""

from typing import Any

from django.contrib.auth.forms import AuthenticationForm
from django.core.exceptions import ValidationError
from django.utils import timezone

from berth import words
from orchestrator.exceptions import Unavailable
from orchestrator.people import audit, sign_in_limits


class SignInForm(AuthenticationForm):
    """Django's, which takes as long for a name that nobody has; too many wrong tries have to wait."""

    wait_s = 0.0  # above 0 after a try that came too early

    def clean(self) -> dict[str, Any]:
        account, address = self.cleaned_data.get("username"), audit.address_of(self.request)
        if account:
            self.wait_s = sign_in_limits.wait_s(account, address, timezone.now())
        if self.wait_s:
            raise ValidationError(
                f"Too many wrong passwords; try again in {words.duration(self.wait_s)}.",
                code="limited",
            )
        try:
            return super().clean()
        except Unavailable as error:  # the directory
            raise ValidationError(str(error), code="unavailable") from None
