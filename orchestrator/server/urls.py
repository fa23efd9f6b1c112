"""Every address of the server."""

from django.conf import settings
from django.contrib import admin
from django.contrib.auth.decorators import login_not_required
from django.urls import include, path
from django.views.generic import RedirectView

from orchestrator.api import api, metrics

handler400 = "orchestrator.api.errors.refuse"
handler500 = "orchestrator.api.errors.fail"
single_sign_on = (
    [path("sso/", include("dashboard.pages.single_sign_on"))] if settings.SINGLE_SIGN_ON_NAME else []
)
urlpatterns = [
    *single_sign_on,
    path("api/v1/", api.urls),
    path("metrics", metrics.show, name="metrics"),
    # One door: the admin's own form would not count wrong passwords.
    path("admin/login/", login_not_required(RedirectView.as_view(pattern_name="login", query_string=True))),
    path("admin/", admin.site.urls),
    path("", include("dashboard.urls")),
]
