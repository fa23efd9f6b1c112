"""berth envs: the packages and caches that are kept for the next jobs, as a table."""

from berth.cli.printing import remark, safe, say, show_json
from berth.cli.tables import grid, terminal
from berth.client import Berth, KeptFiles, NotFound
from berth.client.server_answers import KeptEnvironment
from berth.shared import words

SHORT_KEY = 12
SHORT_DIGEST = 19  # with "sha256:"
MOST_NAMES = 5


def show_kept(berth: Berth, *, as_json: bool) -> None:
    found = berth.environments()
    if as_json:
        show_json(found.json)
        return
    if not found.environments and not found.caches:
        remark(
            "Nothing is kept for your jobs yet. Name packages with: berth run --with transformers train.py"
        )
        return
    if found.environments:
        _show_environments(found)
    for cache in found.caches:
        parts = ", ".join(f"{safe(name)} {words.size(size)}" for name, size in cache.folders.items())
        say(f"Cache of {safe(cache.owner)}: {words.size(cache.size_bytes)} ({parts})")


def _show_environments(found: KeptFiles) -> None:
    table = grid("id", "packages or image", "size", "jobs", "last used by")
    for each in found.environments:
        size = "" if each.size_bytes is None else words.size(each.size_bytes)
        table.add_row(
            each.key[:SHORT_KEY],
            what_of(each),
            size,
            str(each.jobs),
            f"{safe(each.last_used_by)}{', in use' if each.in_use else ''}",
        )
    terminal().print(table)


def what_of(each: KeptEnvironment) -> str:
    """The first packages of an environment; of a container image its name and the start of its digest."""
    if digest := each.json.get("digest"):  # a server before images tells none
        return f"image {safe(', '.join(each.origins))} ({safe(digest)[:SHORT_DIGEST]})"
    names = [safe(package["name"]) for package in each.packages]
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return (", ".join(names[:MOST_NAMES]) or "none") + more


def remove(berth: Berth, key: str, *, as_json: bool) -> None:
    """Remove the packages whose id begins so.

    Raises:
        NotFound: none or several do.
    """
    fitting = [each.key for each in berth.environments().environments if each.key.startswith(key)]
    if len(fitting) != 1:
        raise NotFound(f"{len(fitting) or 'No'} environments have the id {key!r}; `berth envs` lists them.")
    berth.remove_environment(fitting[0])
    if as_json:
        show_json({"removed": fitting[0]})
    else:
        say(f"Removed {fitting[0][:SHORT_KEY]}; a job that needs it has the same versions installed again.")


def clear(berth: Berth, owner: str | None, *, as_json: bool) -> None:
    name = owner or berth.me().username
    berth.clear_cache(name)
    if as_json:
        show_json({"cleared": name})
    else:
        say(f"Cleared the cache of {safe(name)}; jobs download what they need again.")
