"""The addresses of sign-in by OpenID Connect; only where it is switched on."""

from allauth.socialaccount import views
from allauth.socialaccount.providers.openid_connect.urls import urlpatterns as provider_patterns
from django.contrib.auth.decorators import login_not_required
from django.urls import include, path
from django.views.generic import RedirectView, TemplateView

_to_sign_in = login_not_required(RedirectView.as_view(pattern_name="login"))
_inactive = login_not_required(TemplateView.as_view(template_name="socialaccount/inactive.html"))

urlpatterns = [
    path("error/", login_not_required(views.login_error), name="socialaccount_login_error"),
    path("cancelled/", login_not_required(views.login_cancelled), name="socialaccount_login_cancelled"),
    path("signup/", login_not_required(views.signup), name="socialaccount_signup"),
    path("inactive/", _inactive, name="account_inactive"),
    # Names that allauth looks up; our own pages answer.
    path("login/", _to_sign_in, name="account_login"),
    path("new/", _to_sign_in, name="account_signup"),
    path("connections/", _to_sign_in, name="socialaccount_connections"),
    path("", include(provider_patterns)),
]
