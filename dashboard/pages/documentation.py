"""The documentation site, as ``make docs`` built it."""

import base64
import hashlib
import mimetypes
import re
from functools import lru_cache
from pathlib import Path

from django.conf import settings
from django.core.exceptions import SuspiciousFileOperation
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils._os import safe_join
from django.views.decorators.http import require_safe

HASHED_FOREVER = "max-age=31536000, immutable"
_INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)


@require_safe
def documentation(request: HttpRequest, path: str = "") -> HttpResponse:
    """Serve a file of the site; where it was not built, say how to build it."""
    site = Path(settings.DOCUMENTATION_SITE).resolve()
    if not (site / "index.html").is_file():
        return render(request, "dashboard/documentation.html", {"nav": "documentation"}, status=404)
    file = _find(site, path)
    if file.is_dir():
        if path and not path.endswith("/"):
            return redirect(f"{request.path}/")
        file /= "index.html"
    if not file.is_file():
        raise Http404
    kind, _ = mimetypes.guess_type(file.name)
    answer = HttpResponse(file.read_bytes(), content_type=kind or "application/octet-stream")
    if kind == "text/html":
        answer.headers["Content-Language"] = (
            "en"  # as it was written, in whatever language its reader has pages
        )
        answer.headers["Content-Security-Policy"] = _policy(file, file.stat().st_mtime_ns)
    elif "assets" in file.relative_to(site).parts:
        answer.headers["Cache-Control"] = HASHED_FOREVER
    return answer


def _find(site: Path, path: str) -> Path:
    """The file or folder of a path, behind any links.

    Raises:
        Http404: it is outside of the site.
    """
    try:
        return Path(safe_join(site, Path(safe_join(site, path)).resolve()))
    except (SuspiciousFileOperation, ValueError):
        raise Http404 from None


@lru_cache(maxsize=512)
def _policy(file: Path, _changed_ns: int) -> str:
    """A policy that allows the scripts in this page and of this server."""
    scripts = _INLINE_SCRIPT.findall(file.read_bytes())
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'" for script in scripts}
    return (
        f"default-src 'self'; script-src 'self' {' '.join(sorted(hashes))}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; worker-src 'self' blob:; object-src 'none'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'"
    )
