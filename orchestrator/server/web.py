"""What the web process serves: the ASGI application, in a process that is to stay small for weeks."""

from importlib import import_module

from orchestrator.server.long_lived import collect_garbage_often, return_what_is_freed

return_what_is_freed()
application = import_module("orchestrator.server.asgi").application
import_module("orchestrator.server.urls")  # every view, which the first request would load
collect_garbage_often()
