"""What the keys do: a page, and what the key ? shows of it on every page."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

# As static/js/keys.js heeds them.
KEYS = (
    ("Ctrl K", "search or run anything"),
    ("g then o q j c d b u p", "go to Overview, Queue, Jobs, Compare, Datasets, Benchmarks, Usage, Pools"),
    ("c", "submit a job"),
    ("/", "search in the view"),
    ("j k", "next, previous row"),
    ("Enter", "open"),
    ("Space", "choose the row"),
    ("=", "compare what is chosen, or this job"),
    ("x", "cancel (acts after 5 s)"),
    ("u", "undo"),
    ("e", "explain why it waits"),
    ("Alt ↑ ↓", "in the queue: move your own waiting job"),
    ("n", "clone and edit"),
    ("f", "follow the log"),
    ("[ ]", "previous, next job"),
    ("l", "logarithmic y"),
    ("t", "step or time"),
    ("← → + - 0 t", "on a chart: move the cursor, zoom, back to live, table"),
    ("F6", "messages"),
    ("?", "these keys"),
)


@require_safe
def keys(request: HttpRequest) -> HttpResponse:
    return render(request, "dashboard/keys.html", {"keys": KEYS})
