"""Sign-in: the page and its form, and the addresses of single sign-on where it is switched on."""

from math import ceil
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import URLPattern, URLResolver, include, path, reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.generic import RedirectView, TemplateView

from berth.shared import words
from dashboard.pages import sign_in_steps
from orchestrator.api.http.middleware import POLICY_WITH_ISSUER
from orchestrator.exceptions import Forbidden, Unavailable
from orchestrator.people import audit, rights, sign_in_limits
from orchestrator.sentences.errors import sentence_of


class SignInForm(AuthenticationForm):
    """Django's form, which takes equally long for unknown names; adds a wait after too many failures."""

    wait_s = 0.0  # above 0 if this attempt came too early

    def clean(self) -> dict[str, Any]:
        account, address = self.cleaned_data.get("username"), audit.address_of(self.request)
        if account:
            self.wait_s = sign_in_limits.wait_s(account, address, timezone.now())
        if self.wait_s:
            raise ValidationError(
                _("Too many wrong passwords; try again in {duration}.").format(
                    duration=words.duration(self.wait_s)
                ),
                code="limited",
            )
        try:
            return super().clean()
        except (Unavailable, Forbidden) as error:  # the directory is away, or lets this person not in
            raise ValidationError(sentence_of(error), code=error.code) from None

    def confirm_login_allowed(self, user: User) -> None:
        super().confirm_login_allowed(user)
        if rights.is_service(user):
            raise ValidationError(
                _("This is a program's account, which signs in by tokens only."), code="service"
            )


class SignIn(LoginView):
    """Sign-in by name and password, with a button for single sign-on if it is configured."""

    redirect_authenticated_user = True
    authentication_form = SignInForm

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        user = form.get_user()
        assert isinstance(user, User)  # noqa: S101  # the only kind here
        backend: str = getattr(user, "backend", sign_in_steps.OWN_PASSWORDS)
        return sign_in_steps.begin(self.request, user, backend=backend, to=self.get_redirect_url())

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        answer = super().form_invalid(form)
        if isinstance(form, SignInForm) and form.wait_s:
            answer.status_code = 429
            answer.headers["Retry-After"] = str(ceil(form.wait_s))
        return answer

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.user.is_authenticated and self.get_redirect_url().startswith(reverse("admin:index")):
            # The admin sent this person here because they are no operator: sending them back would loop.
            raise PermissionDenied
        answer = super().dispatch(request, *args, **kwargs)
        if settings.SINGLE_SIGN_ON_NAME:
            answer.headers["Content-Security-Policy"] = POLICY_WITH_ISSUER
        return answer

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {**super().get_context_data(**kwargs), "single_sign_on": settings.SINGLE_SIGN_ON_NAME}


def single_sign_on_addresses() -> list[URLPattern | URLResolver]:
    """The addresses of sign-in by OpenID Connect; its library loads only where it is switched on."""
    from allauth.socialaccount import views
    from allauth.socialaccount.providers.openid_connect.urls import urlpatterns as provider_patterns

    to_sign_in = login_not_required(RedirectView.as_view(pattern_name="login"))
    inactive = login_not_required(TemplateView.as_view(template_name="socialaccount/inactive.html"))
    return [
        path("error/", login_not_required(views.login_error), name="socialaccount_login_error"),
        path("cancelled/", login_not_required(views.login_cancelled), name="socialaccount_login_cancelled"),
        path("signup/", login_not_required(views.signup), name="socialaccount_signup"),
        path("inactive/", inactive, name="account_inactive"),
        # Names that allauth looks up; our own pages answer.
        path("login/", to_sign_in, name="account_login"),
        path("new/", to_sign_in, name="account_signup"),
        path("connections/", to_sign_in, name="socialaccount_connections"),
        path("", include(provider_patterns)),
    ]
