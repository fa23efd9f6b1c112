"""How static files are stored: under names that hold their hash, compressed once."""

from whitenoise.storage import CompressedManifestStaticFilesStorage


class HashedStaticFiles(CompressedManifestStaticFilesStorage):
    """Our modules import each other by relative path, so their import lines are rewritten too."""

    support_js_module_import_aggregation = True
