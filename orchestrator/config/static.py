"""How static files are stored: under names that hold their hash, compressed once."""

from typing import Any

import brotli
from whitenoise.compress import Compressor
from whitenoise.storage import CompressedManifestStaticFilesStorage


class QuickCompressor(Compressor):
    """The last two steps of brotli win 9 % and cost a first start ten seconds and more."""

    @staticmethod
    def compress_brotli(data: bytes) -> bytes:
        return bytes(brotli.compress(data, quality=9))


class HashedStaticFiles(CompressedManifestStaticFilesStorage):
    """Our modules import each other by relative path, so their import lines are rewritten too."""

    support_js_module_import_aggregation = True

    def create_compressor(self, **options: Any) -> Compressor:
        return QuickCompressor(**options)
