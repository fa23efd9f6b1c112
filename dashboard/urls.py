"""The addresses of the pages."""

from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import LogoutView
from django.urls import path

from dashboard.views import (
    account,
    audit,
    benchmarks,
    bulk,
    compare,
    job,
    jobs,
    notices,
    notifications,
    overview,
    queue,
    secrets,
    sign_in,
    submit,
    usage,
    whatif,
)

urlpatterns = [
    path("", overview.overview, name="overview"),
    path("queue", queue.queue, name="queue"),
    path("jobs", jobs.jobs, name="jobs"),
    path("jobs/bulk", bulk.change_many, name="jobs-bulk"),
    path("jobs/<uuid:job_id>", job.job, name="job"),
    path("jobs/<slug:part>", jobs.job_by_part, name="job-by-part"),
    path("jobs/<uuid:job_id>/devices", job.device_history, name="job-devices"),
    path("jobs/<uuid:job_id>/log", job.log_before, name="job-log"),
    path("jobs/<uuid:job_id>/<slug:action>", job.act, name="job-act"),
    path("compare", compare.compare, name="compare"),
    path("benchmarks", benchmarks.benchmarks, name="benchmarks"),
    path("usage", usage.usage, name="usage"),
    path("usage.csv", usage.usage_csv, name="usage-csv"),
    path("usage/what-if", whatif.whatif, name="whatif"),
    path("usage/what-if/<slug:key>", whatif.whatif_answer, name="whatif-answer"),
    path("notices", notices.list_notices, name="notices"),
    path("submit", submit.submit, name="submit"),
    path("audit", audit.audit, name="audit"),
    path("account", account.account, name="account"),
    path("account/tokens", account.create_token, name="token-create"),
    path("account/tokens/<int:token_id>/revoke", account.revoke_token, name="token-revoke"),
    path("account/secrets", secrets.keep, name="secret-keep"),
    path("account/secrets/<str:name>/forget", secrets.forget, name="secret-forget"),
    path("account/notifications", notifications.add, name="notice-add"),
    path("account/notifications/<int:target_id>/remove", notifications.remove, name="notice-remove"),
    path("account/notifications/<int:target_id>/test", notifications.try_out, name="notice-test"),
    path("account/keys", account.set_shortcuts, name="shortcuts"),
    path("account/theme", account.set_theme, name="theme"),
    path("login", login_not_required(sign_in.SignIn.as_view()), name="login"),
    path("logout", LogoutView.as_view(), name="logout"),
]
