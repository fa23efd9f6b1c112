"""Django's settings; an operator's choices come from ``environment.py``."""

import os
import secrets
from pathlib import Path

from orchestrator.exceptions import WrongSetting
from orchestrator.people import single_sign_on
from orchestrator.server import logs
from orchestrator.server.environment import read_environment
from orchestrator.store.files.durable import read_or_create

try:
    ENVIRONMENT = read_environment()
    _SIGN_ON = single_sign_on.django_settings(os.environ)
except WrongSetting as error:
    raise SystemExit(f"Berth cannot start: {error}") from None

BASE_DIR = Path(__file__).resolve().parent.parent.parent  # of the packages: a clone, or site-packages
_CLONE = (BASE_DIR / "manage.py").is_file()
_BESIDE = (
    [BASE_DIR] if _CLONE else []
)  # of templates and static files; an installed app has its own (setup.py)
EXAMPLES = BASE_DIR / "examples" if _CLONE else BASE_DIR / "orchestrator" / "examples"
HOME = ENVIRONMENT.home

try:
    # Other users of the machine must not read code, logs and database. An existing folder keeps its mode.
    HOME.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    HOME.uploads.mkdir(exist_ok=True)
    SECRET_KEY = read_or_create(HOME.secret_key, lambda: secrets.token_urlsafe(64))
except OSError as error:
    raise SystemExit(
        f"Berth cannot start: its folder {HOME.root} cannot be used ({error.strerror}); "
        "set BERTH_HOME to a folder that you can write to."
    ) from None
DEBUG = ENVIRONMENT.debug
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", *ENVIRONMENT.allowed_hosts]

INSTALLED_APPS = [
    "orchestrator",
    "dashboard",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "ninja",
    # Second factors at sign-in; allauth.mfa needs the two others.
    "allauth",
    "allauth.account",
    "allauth.mfa",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "orchestrator.api.http.middleware.compressed",
    "orchestrator.api.http.middleware.content_security_policy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "orchestrator.people.sessions.SessionLimits",
    "dashboard.pages.reader.ReadersLanguage",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "orchestrator.api.http.middleware.PlainRequests",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "dashboard.pages.reader.ViewersLookOnly",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
]
ROOT_URLCONF = "orchestrator.server.urls"
ASGI_APPLICATION = "orchestrator.server.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [folder / "templates" for folder in _BESIDE],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "dashboard.pages.frame.shell",
            ]
        },
    }
]
DATABASES = {"default": dict(ENVIRONMENT.database)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "overview"
LOGOUT_REDIRECT_URL = "login"
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_AGE = 7 * 24 * 3600  # idle
SESSION_LONGEST_S = 30 * 24 * 3600  # since sign-in, even if active
SESSION_COOKIE_NAME = "berth_session"
CSRF_COOKIE_NAME = "berth_csrf"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
if ENVIRONMENT.tls:
    SECURE_SSL_REDIRECT = SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    SECURE_HSTS_SECONDS = 365 * 24 * 3600
    SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = True
    # Probes and Prometheus bypass the proxy.
    SECURE_REDIRECT_EXEMPT = [r"^api/v1/health/", r"^metrics$"]

MFA_ADAPTER = "orchestrator.people.second_factor.Adapter"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_TOTP_ISSUER = "Berth"
MFA_TOTP_TOLERANCE = 1  # clocks of phones are some seconds off
ACCOUNT_EMAIL_VERIFICATION = "none"  # Berth sends no such mails; an issuer verifies its own people's
INSTALLED_APPS += _SIGN_ON.pop("INSTALLED_APPS", [])
SINGLE_SIGN_ON_NAME = ""  # set if people may sign in by OpenID Connect
LDAP: single_sign_on.Ldap | None = None  # set if there is a directory
OPENID_CONNECT: single_sign_on.OpenIdConnect | None = None  # set if there is an issuer
NEWCOMERS = (
    single_sign_on.WAIT
)  # what becomes of people whom an identity provider knows and Berth does not yet
globals().update(_SIGN_ON)

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("de", "Deutsch")]
LANGUAGE_COOKIE_NAME = "berth_language"
FORMAT_MODULE_PATH = "orchestrator.server.formats"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = True

STATIC_URL = "static/"
STATIC_ROOT = HOME.root / "static"
STATICFILES_DIRS = [folder / "static" for folder in _BESIDE]
DOCUMENTATION_SITE = BASE_DIR / "build" / "docs" / "site"  # where `make docs` leaves it
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "dashboard.assets.finders.PlotlyFinder",
]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "orchestrator.server.static.HashedStaticFiles"},
}
FILE_UPLOAD_TEMP_DIR = str(HOME.uploads)
FILE_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024
DATA_UPLOAD_MAX_MEMORY_SIZE = 16 * 1024 * 1024  # JSON bodies; files stream to disk
DATA_UPLOAD_MAX_NUMBER_FIELDS = 1000
DATA_UPLOAD_MAX_NUMBER_FILES = 8

LOGGING = logs.django_settings(ENVIRONMENT.log_format)
