"""``python -m deploy.translations``: make the catalogs that Django reads (.mo) of the ones that people write (.po).

GNU gettext would do the same; a machine without it can run the tests and build a wheel as well.
"""

import ast
import json
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = tuple(path.parent for path in sorted((ROOT / "orchestrator" / "locale").glob("*/LC_MESSAGES")))
SCRIPTS = "scripts.po"  # the texts of static/js; all other files are Django's
MAGIC = 0x950412DE


def main() -> int:
    for language in LANGUAGES:
        texts, scripts = catalog(language), read(language / SCRIPTS)
        compiled(language).write_bytes(compile_catalog(texts))
        for_scripts(language).write_text(script_of(scripts))
        sys.stdout.write(f"{language.name}: {len(texts) - 1} texts, {len(scripts)} of scripts\n")
    return 0


def compiled(language: Path) -> Path:
    """What Django reads."""
    return language / "LC_MESSAGES" / "django.mo"


def for_scripts(language: Path) -> Path:
    """What pages in that language load before their scripts."""
    return ROOT / "static" / "js" / f"words-{language.name}.js"


def catalog(language: Path) -> dict[str, str]:
    """All texts of a language but those of scripts; a file for each part of the pages.

    Raises:
        ValueError: two files translate one text differently; the message names it.
    """
    texts: dict[str, str] = {}
    for path in sorted(language.glob("*.po")):
        if path.name == SCRIPTS:
            continue
        for english, translated in read(path).items():
            if texts.setdefault(english, translated) != translated:
                raise ValueError(f"{path}: {english[:60]!r} is translated differently in another file")
    return texts


def read(path: Path) -> dict[str, str]:
    """The translations of a catalog by their English text; that of the empty text is the catalog's header.

    As GNU gettext keeps them: a text with a plural has both its forms, in English and in the translation, with a NUL
    between them, and one with a context has that before it.

    Raises:
        ValueError: a text is there twice, or a line is none of a catalog; the message names the line.
    """
    texts: dict[str, str] = {}
    parts: dict[str, str] = {}
    keyword = ""
    for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
        if line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word in ("msgctxt", "msgid", "msgid_plural", "msgstr", "msgstr[0]", "msgstr[1]"):
            keyword, parts[word] = word, ast.literal_eval(rest)
        elif line.startswith('"') and keyword:
            parts[keyword] += ast.literal_eval(line)
        elif line.strip():
            raise ValueError(f"{path}, line {number}: this is no line of a catalog: {line[:60]}")
        elif parts:
            english, translated = _entry(parts)
            if english in texts:
                raise ValueError(f"{path}, line {number}: {english[:60]!r} is there twice")
            texts[english] = translated
            parts, keyword = {}, ""
    return texts


def _entry(parts: Mapping[str, str]) -> tuple[str, str]:
    context = f"{parts['msgctxt']}\4" if "msgctxt" in parts else ""
    if "msgid_plural" not in parts:
        return context + parts["msgid"], parts["msgstr"]
    plural = f"{context}{parts['msgid']}\0{parts['msgid_plural']}"
    return plural, f"{parts['msgstr[0]']}\0{parts['msgstr[1]']}"


def script_of(texts: Mapping[str, str]) -> str:
    """The texts of scripts as a script, for the page has them before any of its modules runs."""
    words = json.dumps(dict(sorted(texts.items())), ensure_ascii=False, indent=0)
    return f"// Made by python -m deploy.translations.\nglobalThis.berthWords = {words};\n"


def compile_catalog(texts: Mapping[str, str]) -> bytes:
    """A catalog in the format of GNU gettext, without its optional table of hashes."""
    rows = sorted(
        (english.encode(), translated.encode()) for english, translated in texts.items() if translated
    )
    start = 28  # of the header: seven numbers
    place = start + 16 * len(rows)
    tables: list[bytes] = []
    data = b""
    for column in (0, 1):
        for row in rows:
            tables.append(struct.pack("<II", len(row[column]), place + len(data)))
            data += row[column] + b"\0"
    header = struct.pack("<7I", MAGIC, 0, len(rows), start, start + 8 * len(rows), 0, place)
    return header + b"".join(tables) + data


if __name__ == "__main__":
    raise SystemExit(main())
