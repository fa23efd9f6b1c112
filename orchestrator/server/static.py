"""Static files: collected once, named by hash, minified and compressed."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import brotli
import django
import rjsmin
from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core.files.base import ContentFile, File
from django.core.management import call_command
from whitenoise.compress import Compressor
from whitenoise.storage import CompressedManifestStaticFilesStorage

OWN_SCRIPTS = "js/"


class QuickCompressor(Compressor):
    """brotli's last two levels save 9 % and would slow the first start by ten seconds or more."""

    @staticmethod
    def compress_brotli(data: bytes) -> bytes:
        return bytes(brotli.compress(data, quality=9))


class HashedStaticFiles(CompressedManifestStaticFilesStorage):
    """Hashed storage that also rewrites the relative imports of our scripts."""

    support_js_module_import_aggregation = True
    max_post_process_passes = 16  # a chain of imports takes a pass a link; it ends when no name changes

    def _save(self, name: str, content: "File[Any]") -> str:
        """Minify our own scripts; third-party files stay as they are."""
        if name.startswith(OWN_SCRIPTS) and name.endswith(".js"):
            content.seek(0)  # hashing has read it to its end
            content = ContentFile(rjsmin.jsmin(content.read()))
        return str(super()._save(name, content))

    def create_compressor(self, **options: Any) -> Compressor:
        return QuickCompressor(**options)

    def compress_files(self, paths: set[str]) -> Iterator[tuple[str, str]]:
        """Compress only the files with a hash in their name: pages name no others, and each file is there twice."""
        return iter(super().compress_files(paths & set(self.hashed_files.values())))


def collect_static() -> None:
    """Hash and compress the static files, unless nothing changed."""
    stamp = settings.STATIC_ROOT / ".stamp"
    state = _static_state()
    if stamp.exists() and stamp.read_text() == state:
        return
    call_command("collectstatic", interactive=False, clear=True, verbosity=0)
    stamp.write_text(state)


def _static_state() -> str:
    """A stamp that changes with any static file, ours or a library's; times say nothing of a version installed later.

    The same for a clone and an installed package, which find the same files in other places.
    """
    sources: dict[str, Path] = {}
    for finder in get_finders():
        for path, storage in finder.list([]):
            sources.setdefault(path, Path(storage.path(path)))
    digest = hashlib.sha256(django.__version__.encode())
    for path, source in sorted(sources.items()):
        content = source.read_bytes()
        digest.update(f"{path} {len(content)} ".encode() + content)
    return digest.hexdigest()
