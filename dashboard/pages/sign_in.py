"""The sign-in page."""

from math import ceil
from typing import Any

from django.conf import settings
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import reverse

from dashboard.pages.sign_in_form import SignInForm
from orchestrator.api.middleware import POLICY

# Browsers hold the redirect that answers a form to the form's own rule, and the issuer is another host.
_POLICY_WITH_ISSUER = POLICY.replace("form-action 'self'", "form-action 'self' https:")


class SignIn(LoginView):
    """By name and password; with a button for the single sign-on where there is one."""

    redirect_authenticated_user = True
    authentication_form = SignInForm

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        answer = super().form_invalid(form)
        if isinstance(form, SignInForm) and form.wait_s:
            answer.status_code = 429
            answer.headers["Retry-After"] = str(ceil(form.wait_s))
        return answer

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.user.is_authenticated and self.get_redirect_url().startswith(reverse("admin:index")):
            # Sent here by the admin because they are no operator: sending them back would never end.
            raise PermissionDenied
        answer = super().dispatch(request, *args, **kwargs)
        if settings.SINGLE_SIGN_ON_NAME:
            answer.headers["Content-Security-Policy"] = _POLICY_WITH_ISSUER
        return answer

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {**super().get_context_data(**kwargs), "single_sign_on": settings.SINGLE_SIGN_ON_NAME}
