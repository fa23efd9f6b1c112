"""``python -m deploy.translations``: make the catalogs that Django reads (.mo) of the ones that people write (.po).

GNU gettext would do the same; a machine without it can run the tests and build a wheel as well.
"""

import ast
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CATALOGS = tuple(sorted((ROOT / "orchestrator" / "locale").glob("*/LC_MESSAGES/*.po")))
MAGIC = 0x950412DE


def main() -> int:
    for path in CATALOGS:
        texts = read(path)
        compiled(path).write_bytes(compile_catalog(texts))
        sys.stdout.write(f"{path.relative_to(ROOT)}: {len(texts) - 1} texts\n")
    return 0


def compiled(path: Path) -> Path:
    return path.with_suffix(".mo")


def read(path: Path) -> dict[str, str]:
    """The translations of a catalog by their English text; that of the empty text is the catalog's header.

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
        if word in ("msgid", "msgstr"):
            keyword, parts[word] = word, ast.literal_eval(rest)
        elif line.startswith('"') and keyword:
            parts[keyword] += ast.literal_eval(line)
        elif line.strip():
            raise ValueError(f"{path}, line {number}: this is no line of a catalog: {line[:60]}")
        elif parts:
            if parts["msgid"] in texts:
                raise ValueError(f"{path}, line {number}: {parts['msgid'][:60]!r} is there twice")
            texts[parts["msgid"]] = parts["msgstr"]
            parts, keyword = {}, ""
    return texts


def compile_catalog(texts: dict[str, str]) -> bytes:
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
