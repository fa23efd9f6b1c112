"""The files that list packages: their names, and their text."""

import codecs

# In the order in which they are looked for: the more exact, the earlier.
PACKAGE_FILES = (
    "uv.lock",
    "pylock.toml",
    "requirements.txt",
    "environment.yml",
    "environment.yaml",
    "pyproject.toml",
    "Pipfile.lock",
    "Pipfile",
    "setup.cfg",
    "setup.py",
)
PROJECT_LOCKS = ("poetry.lock", "pdm.lock")  # which count with the pyproject.toml beside them


def text_of(data: bytes) -> str:
    """The text of a list with the line ends of Unix, so that equal lists share an environment.

    It is UTF-8, or UTF-16 with its mark, which PowerShell writes for ``pip freeze > FILE``.

    Raises:
        UnicodeDecodeError: it is neither.
    """
    is_utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if is_utf_16 else "utf-8-sig").replace("\r\n", "\n")
