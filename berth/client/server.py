"""A server: its jobs, devices, data and people."""

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import quote

from berth.client.code import ARCHIVES, add_git_state, read_code
from berth.client.connection import Connection
from berth.client.errors import BerthError
from berth.client.job_answers import Plan
from berth.client.jobs import Job
from berth.client.programs import Service, Session
from berth.client.server_answers import (
    Booking,
    Dataset,
    Device,
    Federation,
    KeptFiles,
    Link,
    Model,
    Person,
    Pool,
    Project,
    Recipe,
    Usage,
)
from berth.client.spec import Spec
from berth.client.sweeps import Sweep


class Berth(Connection):
    """A server, seen as the owner of a token.

    Args:
        url: such as ``https://gpu-box:8265``; default: BERTH_URL, then `berth login`, then localhost.
        token: default: BERTH_TOKEN, then what `berth login` stored for this address.
        timeout_s: how long one answer may take.

    Raises:
        BerthError: the address or the token cannot be one.
    """

    def run(self, code: str | Path | None = None, **spec: Unpack[Spec]) -> Job:
        """Submit a job; when this returns, the server has stored it.

        Args:
            code: a script, an archive (.zip, .tar.gz) or a folder with ``entrypoint`` inside; None where
                ``source`` has the code.
        """
        if "datasets" in spec:
            spec["datasets"] = [self._reference(each) for each in spec["datasets"]]
        if code is None:
            return Job(self._submit(spec, None), self)
        upload = read_code(Path(code), spec)
        is_told = "git" in spec
        if not upload[1].endswith(ARCHIVES) or Path(code).is_dir():
            add_git_state(Path(code), spec)
        try:
            return Job(self._submit(spec, upload), self)
        except BerthError as error:
            # A server from before it kept commits: nobody asked for this field.
            if is_told or error.status != 400 or set(error.fields) != {"git"}:
                raise
        del spec["git"]
        return Job(self._submit(spec, upload), self)

    def _submit(self, spec: Spec, code: tuple[str, str, bytes] | None) -> Any:
        """Send a job; the server answers a repeated request with the same job."""
        body: dict[str, Any] = {"json": spec}
        if code is not None:
            part, name, data = code
            body = {
                "files": {part: (name, data), "job": (None, json.dumps(spec).encode(), "application/json")}
            }
        return self.send(
            "POST", "/jobs", **body, headers={"Idempotency-Key": str(uuid.uuid4())}, again=3
        ).json()

    def sweep(self, code: str | Path | None = None, *, job: Spec | None = None, **sweep: Any) -> Sweep:
        """Begin a search for good settings.

        Args:
            code: as ``run`` takes it.
            job: the fields of every trial.
            sweep: ``set`` or ``space``, ``metric``, ``direction``, ``budget`` and others; docs/reference/api.md.
        """
        spec: Spec = {**job} if job else {}
        files = {}
        if code is not None:
            part, name, data = read_code(Path(code), spec)
            files = {part: (name, data)}
        body = {"job": spec, **sweep}
        as_form = {**files, "sweep": (None, json.dumps(body).encode(), "application/json")}
        sent: dict[str, Any] = {"files": as_form} if files else {"json": body}
        key = {"Idempotency-Key": str(uuid.uuid4())}
        return Sweep(self.send("POST", "/sweeps", **sent, headers=key, again=3).json(), self)

    def federate(
        self, code: str | Path | None = None, *, job: Spec | None = None, **federation: Any
    ) -> Federation:
        """Begin a federated training, whose sites are jobs.

        Args:
            code: as ``run`` takes it.
            job: the fields of every site's job.
            federation: ``model``, ``sites``, ``rounds`` and others; docs/reference/api.md.
        """
        spec: Spec = {**job} if job else {}
        body = {"job": spec, **federation}
        if code is None:
            return Federation(self.send("POST", "/federated", json=body).json(), self)
        part, name, data = read_code(Path(code), {**spec, "module": "training.federated"})
        as_form = {part: (name, data), "federation": (None, json.dumps(body).encode(), "application/json")}
        return Federation(self.send("POST", "/federated", files=as_form).json(), self)

    def join_federation(
        self,
        invitation: str,
        code: str | Path | None = None,
        *,
        model: str,
        data: str | None = None,
        job: Spec | None = None,
    ) -> Job:
        """Take part in a federated training at another Berth, as a job of this one; data stay here.

        Args:
            invitation: the link that the federation's owner has sent.
            code: as ``run`` takes it.
            model: function that builds the same model as the federation's.
            data: function with this site's data.
            job: the fields of the job.
        """
        spec: Spec = {**job} if job else {}
        body: dict[str, Any] = {"invitation": invitation, "model": model, "job": spec}
        if data is not None:
            body["data"] = data
        if code is None:
            return Job(self.send("POST", "/federated/join", json=body).json(), self)
        part, name, content = read_code(Path(code), {**spec, "module": "training.federated"})
        as_form = {part: (name, content), "join": (None, json.dumps(body).encode(), "application/json")}
        return Job(self.send("POST", "/federated/join", files=as_form).json(), self)

    def federation(self, federation_id: str) -> Federation:
        """Find a federated training by its id, or by an unambiguous part of at least four characters."""
        return Federation(self.get(f"/federated/{quote(federation_id, safe='')}"), self)

    def federations(self, *, limit: int | None = None) -> list[Federation]:
        """List the federated trainings that the caller may see, newest first."""
        return [Federation(each, self) for each in self.pages("/federated", limit=limit)]

    def find_sweep(self, sweep_id: str) -> Sweep:
        """Find a sweep by its id, or by an unambiguous part of at least four characters."""
        return Sweep(self.get(f"/sweeps/{quote(sweep_id, safe='')}"), self)

    def sweeps(self, *, state: str | None = None, limit: int | None = None) -> list[Sweep]:
        """List the sweeps that the caller may see, newest first."""
        return [Sweep(each, self) for each in self.pages("/sweeps", {"state": state}, limit=limit)]

    def sessions(self) -> list[Session]:
        """List the caller's sessions: those that have not ended, then the newest that have."""
        return [Session(each) for each in self.pages("/sessions")]

    def stop_session(self, session_id: str) -> Session:
        """End a session for good."""
        return Session(self.send("POST", f"/sessions/{quote(session_id, safe='')}/stop").json())

    def wake_session(self, session_id: str) -> Session:
        """Let a session that is asleep go on in its folder."""
        return Session(self.send("POST", f"/sessions/{quote(session_id, safe='')}/wake").json())

    def serve(
        self, name: str, code: str | Path | None = None, *, job: Spec | None = None, **rules: Any
    ) -> Service:
        """Begin a service; its first replica starts with the first request, or now with ``min_replicas``.

        Args:
            name: part of its address.
            code: as ``run`` takes it.
            job: the fields of a replica's job, with its ``command``.
            rules: ``min_replicas``, ``max_replicas``, ``idle_s``, ``deadline_s`` and others; docs/reference/api.md.
        """
        spec: Spec = {**job} if job else {}
        files = {}
        if code is not None:
            part, file_name, data = read_code(Path(code), spec)
            files = {part: (file_name, data)}
        body = {"name": name, "job": spec, **rules}
        as_form = {**files, "service": (None, json.dumps(body).encode(), "application/json")}
        sent: dict[str, Any] = {"files": as_form} if files else {"json": body}
        return Service(self.send("POST", "/services", **sent).json(), self)

    def service(self, name: str) -> Service:
        """Find a service by its name."""
        return Service(self.get(f"/services/{quote(name, safe='')}"), self)

    def services(self) -> list[Service]:
        """List the services that the caller may see, by name."""
        return [Service(each, self) for each in self.pages("/services")]

    def plan(self, **spec: Unpack[Spec]) -> Plan:
        """Plan when and where a job would run if it were submitted now; submits nothing."""
        return Plan(self.send("POST", "/plan", json=spec).json())

    def job(self, job_id: str) -> Job:
        """Find a job by its id, or by an unambiguous part of at least four characters."""
        return Job(self.get(f"/jobs/{quote(job_id, safe='')}"), self)

    def jobs(
        self,
        *,
        state: str | Sequence[str] | None = None,
        owner: str | None = None,
        tag: str | None = None,
        q: str | None = None,
        pool: str | None = None,
        ordering: str = "-submitted_at",
        limit: int | None = None,
    ) -> Iterator[Job]:
        """Iterate over the jobs that the caller may see, newest first, fetched page by page.

        Args:
            q: a part of a name or id.
            limit: the most jobs to return; None for all.
        """
        states = state if state is None or isinstance(state, str) else ",".join(state)
        query = {"state": states, "owner": owner, "tag": tag, "q": q, "pool": pool, "ordering": ordering}
        return (Job(each, self) for each in self.pages("/jobs", query, limit=limit))

    def devices(self, pool: str | None = None) -> list[Device]:
        """List devices by index, with current readings and holders."""
        return [Device(each) for each in self.pages("/devices", {"pool": pool})]

    def set_device(self, device_id: str, state: str) -> Device:
        """Set a device ``enabled``, ``draining`` (no new jobs) or ``disabled``; for operators."""
        path = f"/devices/{quote(device_id, safe='')}"
        return Device(self.send("PATCH", path, json={"state": state}).json())

    def pools(self) -> list[Pool]:
        return [Pool(each) for each in self.pages("/pools")]

    def calendar(self, *, pool: str | None = None) -> list[Booking]:
        """List current and future bookings, newest entry first."""
        return [Booking(each) for each in self.pages("/reservations", {"pool": pool})]

    def book(self, body: Mapping[str, Any]) -> Booking:
        """Add a reservation or maintenance; for operators of its pool. Fields: docs/reference/api.md."""
        return Booking(self.send("POST", "/reservations", json=dict(body)).json())

    def change_booking(self, booking: int, changes: Mapping[str, Any]) -> Booking:
        """Change times, devices, people, name or note of a booking; for operators of its pool."""
        return Booking(self.send("PATCH", f"/reservations/{booking}", json=dict(changes)).json())

    def unbook(self, booking: int) -> None:
        """Remove a booking."""
        self.send("DELETE", f"/reservations/{booking}")

    def projects(self) -> list[Project]:
        """List your projects; operators see all."""
        return [Project(each) for each in self.pages("/projects")]

    def project(self, name: str) -> Project:
        return Project(self.get(f"/projects/{quote(name, safe='')}"))

    def make_project(self, name: str, description: str = "") -> Project:
        """Create a project; you are its first owner."""
        body = {"name": name, "description": description}
        return Project(self.send("POST", "/projects", json=body).json())

    def remove_project(self, name: str) -> None:
        """Delete a project that no job has."""
        self.send("DELETE", f"/projects/{quote(name, safe='')}")

    def set_member(self, project: str, username: str, role: str = "member") -> Project:
        """Make somebody a member or an owner of a project."""
        path = f"/projects/{quote(project, safe='')}/members/{quote(username, safe='')}"
        return Project(self.send("PUT", path, json={"role": role}).json())

    def drop_member(self, project: str, username: str) -> None:
        """Take somebody out of a project; their jobs stay in it."""
        self.send("DELETE", f"/projects/{quote(project, safe='')}/members/{quote(username, safe='')}")

    def links(self) -> list[Link]:
        """List your links that still work, newest first."""
        return [Link(each) for each in self.pages("/links")]

    def share(self, kind: str = "job", **fields: Any) -> Link:
        """Make a read-only link; its ``url`` is in this answer only. Fields: docs/reference/api.md."""
        return Link(self.send("POST", "/links", json={"kind": kind, **fields}).json())

    def unshare(self, link: int) -> None:
        """Take a link back."""
        self.send("DELETE", f"/links/{link}")

    def usage(self, by: str = "owner", *, days: float = 30, pool: str | None = None) -> Usage:
        """Sum up the GPU-hours of the last days by ``owner``, ``pool`` or ``day``."""
        query = {"by": by, "from": time.time() - days * 86_400, "pool": pool}
        params = {name: value for name, value in query.items() if value is not None}
        return Usage(self.send("GET", "/usage", params=params).json())

    def environments(self) -> KeptFiles:
        """List the packages and caches that are kept for jobs; admins see everybody's."""
        return KeptFiles(self.get("/environments"))

    def remove_environment(self, key: str) -> None:
        """Remove installed packages; a job that needs them has the same versions installed again."""
        self.send("DELETE", f"/environments/built/{quote(key, safe='')}")

    def clear_cache(self, owner: str) -> None:
        """Remove what jobs of a person downloaded and compiled; for admins anybody's."""
        self.send("DELETE", f"/environments/caches/{quote(owner, safe='')}")

    def datasets(self) -> list[Dataset]:
        """List the registered datasets and those that you pushed, newest first."""
        return [Dataset(each) for each in self.pages("/datasets")]

    def add_dataset(
        self, name: str, *, path: str, root: str | None = None, version: str = "1", description: str = ""
    ) -> Dataset:
        """Register a file or folder that lies under one of the server's dataset roots.

        Args:
            path: relative to ``root``; without a root the absolute path on the server.
        """
        body = {"name": name, "root": root, "path": path, "version": version, "description": description}
        return Dataset(self.send("POST", "/datasets", json=body).json())

    def push(
        self,
        name: str,
        path: str | Path,
        *,
        version: str | None = None,
        description: str = "",
        tell: Callable[[int, int], None] | None = None,
    ) -> Dataset:
        """Push a file or folder of this machine to a dataset of yours; unchanged files are not sent again.

        Args:
            version: default: the next number, if anything changed.
            tell: called with the bytes that are there, and of all that are sent.
        """
        from berth.uploads.pushing import CannotPush, push  # late import: most programs push nothing

        try:
            return Dataset(push(self, name, Path(path), version=version, description=description, tell=tell))
        except CannotPush as error:
            raise BerthError(str(error)) from error

    def _reference(self, data: str | Path) -> str:
        """The name of a dataset, which is pushed first if it is a path of this machine."""
        if isinstance(data, str):
            return data
        from berth.uploads.pushing import name_of  # late import, as above

        return self.push(name_of(data), data).reference

    def remove_dataset(self, reference: str) -> None:
        """Remove a dataset of yours: one version, or by its name alone all; registered files stay where they are."""
        self.send("DELETE", f"/datasets/{quote(reference)}")

    def models(self, q: str = "") -> list[Model]:
        """List your models, newest first; ``q`` is a part of the name."""
        return [Model(each) for each in self.pages("/models", {"q": q or None})]

    def model(self, reference: str) -> Model:
        """One model with its files and readers: ``name@version``, or the newest version of ``name``."""
        return Model(self.get(f"/models/{quote(reference)}"))

    def make_model(
        self,
        name: str,
        *,
        job: str | None = None,
        sweep: str | None = None,
        checkpoint: str | int | None = None,
        version: str | None = None,
        description: str = "",
    ) -> Model:
        """Make a model of a job's checkpoint, or of the best trial of a sweep.

        Args:
            checkpoint: its step or name; default: the newest.
            version: default: the next number.
        """
        body = {
            "name": name,
            "job": job,
            "sweep": sweep,
            "checkpoint": None if checkpoint is None else str(checkpoint),
            "version": version,
            "description": description,
        }
        return Model(self.send("POST", "/models", json=body).json())

    def run_recipe(self, reference: str, recipe: str, **options: object) -> Recipe:
        """Submit a job that evaluates, exports, quantizes, prunes, distils, averages or explains a model.

        Args:
            options: fields of the recipe, such as ``model="train.py:build_model"``.
        """
        body = {"recipe": recipe, **{name: value for name, value in options.items() if value is not None}}
        return Recipe(self.send("POST", f"/models/{quote(reference)}/recipes", json=body).json())

    def serve_model(self, reference: str, **options: object) -> Service:
        """Begin a service that answers with a model.

        Args:
            options: ``name`` of the service, ``model="train.py:build_model"``, ``gpus``, ``gpu_memory_gib``,
                ``with_packages``, ``min_replicas``.
        """
        body = {name: value for name, value in options.items() if value is not None}
        return Service(self.send("POST", f"/models/{quote(reference)}/service", json=body).json(), self)

    def recipes(self, reference: str) -> list[Recipe]:
        """List the recipes of a model and the one that made it, newest first."""
        return [Recipe(each) for each in self.pages(f"/models/{quote(reference)}/recipes", {})]

    def fetch_model(self, reference: str, path: str, to: Path) -> Path:
        """Download one file of a model; ``to`` appears when it is complete."""
        return self.download(f"/models/{quote(reference)}/download?file={quote(path, safe='')}", to)

    def remove_model(self, reference: str) -> None:
        """Remove one version of a model of yours, and its files."""
        self.send("DELETE", f"/models/{quote(reference)}")

    def secrets(self) -> list[str]:
        """List the names of your secrets for jobs; values are never shown."""
        return [each["name"] for each in self.pages("/secrets")]

    def keep_secret(self, name: str, value: str) -> None:
        """Store a secret, or replace its value; a job names it in ``secrets`` and finds it in its environment."""
        self.send("PUT", f"/secrets/{quote(name, safe='')}", json={"value": value})

    def forget_secret(self, name: str) -> None:
        self.send("DELETE", f"/secrets/{quote(name, safe='')}")

    def me(self) -> Person:
        return Person(self.get("/me"))
