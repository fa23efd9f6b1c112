"""Every address of the server."""

from django.conf import settings
from django.contrib import admin
from django.contrib.auth.decorators import login_not_required
from django.urls import include, path
from django.views.generic import RedirectView

from dashboard.pages import sign_in
from orchestrator.api import api
from orchestrator.api.resources import prometheus

handler400 = "orchestrator.api.http.errors.refuse"
handler500 = "orchestrator.api.http.errors.fail"
single_sign_on = (
    [path("sso/", include(sign_in.single_sign_on_addresses()))] if settings.SINGLE_SIGN_ON_NAME else []
)
urlpatterns = [
    *single_sign_on,
    path("api/v1/", api.urls),
    path("metrics", prometheus.show, name="metrics"),
    # The admin's own sign-in form would not count wrong passwords.
    path("admin/login/", login_not_required(RedirectView.as_view(pattern_name="login", query_string=True))),
    path("admin/", admin.site.urls),
    path("", include("dashboard.urls")),
]
