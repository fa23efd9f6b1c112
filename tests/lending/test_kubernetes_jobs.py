"""Pilots as Jobs, against a small server that speaks the part of Kubernetes' API that is used; no cluster has run them."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes import client as api

from orchestrator.lending.kubernetes_jobs import LABEL, KubernetesJobs, Namespace
from orchestrator.lending.port import Grant, GrantState, NoAnswer, PilotRequest, Refused

WISH = PilotRequest(
    tag="berth-1f",
    name="cluster-kubernetes-1",
    head="10.0.0.5:6380",
    token="unused",  # noqa: S106  # it comes by a Secret of the cluster
    devices="nvml",
    gpus=2,
    cpus=8,
    longest_s=3600,
)
JOBS, PODS = "/apis/batch/v1/namespaces/lab/jobs", "/api/v1/namespaces/lab/pods"
BEGAN, BEGAN_S = "2026-11-25T12:00:00Z", 1795608000.0


class Cluster(ThreadingHTTPServer):
    """Jobs and pods of one namespace, as the API's reference describes them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.refuses: tuple[int, str] | None = None
        self.deleted_by: dict[str, Any] = {}

    def pod(self, **status: Any) -> None:
        """The pod of the only job, with this status."""
        ((name, job),) = self.jobs.items()
        labels = job["spec"]["template"]["metadata"]["labels"]
        self.pods[name] = {
            "metadata": {"name": f"{name}-x7k2p", "labels": labels},
            "spec": {**job["spec"]["template"]["spec"], "nodeName": "gpu-7"},
            "status": status,
        }

    def finish(self, kind: str, reason: str) -> None:
        ((_, job),) = self.jobs.items()
        job["status"] = {"conditions": [{"type": kind, "status": "True", "reason": reason}]}


class _Handler(BaseHTTPRequestHandler):
    server: Cluster

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base's name
        pass

    def do_POST(self) -> None:
        if self._refused():
            return
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        api.V1Job.model_validate(job)  # the server refuses fields that it does not know
        assert urlsplit(self.path).path == JOBS
        if job["metadata"]["name"] in self.server.jobs:
            self._answer(409, {"kind": "Status", "reason": "AlreadyExists", "message": "already exists"})
            return
        self.server.jobs[job["metadata"]["name"]] = {**job, "status": {}}
        self._answer(201, job)

    def do_GET(self) -> None:
        if self._refused():
            return
        parts = urlsplit(self.path)
        (selector,) = parse_qs(parts.query)["labelSelector"]
        label, _, tags = selector.partition(" in ")
        chosen = set(tags.strip("()").split(","))
        kept, kind = (self.server.jobs, "Job") if parts.path == JOBS else (self.server.pods, "Pod")
        items = [one for one in kept.values() if one["metadata"]["labels"].get(label) in chosen]
        version = "batch/v1" if kind == "Job" else "v1"
        self._answer(200, {"apiVersion": version, "kind": f"{kind}List", "metadata": {}, "items": items})

    def do_DELETE(self) -> None:
        if self._refused():
            return
        parts = urlsplit(self.path)
        name = parts.path.removeprefix(f"{JOBS}/")
        self.server.deleted_by[name] = parse_qs(parts.query).get("propagationPolicy")
        if self.server.jobs.pop(name, None) is None:
            self._answer(404, {"kind": "Status", "message": f'jobs.batch "{name}" not found'})
        else:
            self.server.pods.pop(name, None)
            self._answer(200, {"kind": "Status", "status": "Success"})

    def _refused(self) -> bool:
        if self.server.refuses is None:
            return False
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, message = self.server.refuses
        self._answer(status, {"kind": "Status", "status": "Failure", "message": message, "code": status})
        return True

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        thread = threading.Thread(target=cluster.serve_forever, args=(0.05,))
        thread.start()
        yield cluster
        cluster.shutdown()
        thread.join()


@pytest.fixture
def engine(cluster: Cluster) -> KubernetesJobs:
    configuration = api.Configuration(host=f"http://127.0.0.1:{cluster.server_port}")
    configuration.retries = False
    return KubernetesJobs(Namespace("lab", "registry.lab/berth:1"), api.ApiClient(configuration))


def grant(engine: KubernetesJobs) -> Grant:
    return engine.grants([WISH.tag])[WISH.tag]


def test_pilot_is_a_job_of_one_pod_that_is_never_repeated(engine, cluster):
    assert engine.request(WISH) == "berth-1f"

    spec = cluster.jobs["berth-1f"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert (spec["backoffLimit"], pod["restartPolicy"], pod["activeDeadlineSeconds"]) == (0, "Never", 3600)
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert container["command"][:5] == ["python", "-m", "orchestrator.management", "pilot", "10.0.0.5:6380"]
    assert spec["template"]["metadata"]["labels"][LABEL] == WISH.tag


def test_same_request_twice_is_one_job(engine, cluster):
    assert engine.request(WISH) == engine.request(WISH)
    assert len(cluster.jobs) == 1


def test_waiting_pod_waits_for_the_reason_of_the_clusters_scheduler(engine, cluster):
    engine.request(WISH)
    assert grant(engine).state is GrantState.WAITING
    reason = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    cluster.pod(
        phase="Pending",
        conditions=[
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reason}
        ],
    )

    assert grant(engine)[2:4] == (GrantState.WAITING, reason)


def test_image_that_cannot_be_fetched_is_told(engine, cluster):
    engine.request(WISH)
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry.lab/berth:1"'}
    cluster.pod(
        phase="Pending",
        startTime=BEGAN,
        containerStatuses=[
            {
                "name": "pilot",
                "image": "registry.lab/berth:1",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {"waiting": waiting},
            }
        ],
    )

    assert grant(engine).reason == 'Back-off pulling image "registry.lab/berth:1"'


def test_running_pod_is_held_until_its_deadline(engine, cluster):
    engine.request(WISH)
    cluster.pod(phase="Running", startTime=BEGAN)

    held = grant(engine)

    assert (held.state, held.where) == (GrantState.HELD, "gpu-7")
    assert (held.held_at, held.until) == (BEGAN_S, BEGAN_S + 3600)


def test_ended_pod_is_proof_that_nothing_runs(engine, cluster):
    engine.request(WISH)
    cluster.pod(phase="Failed", reason="DeadlineExceeded", startTime=BEGAN)
    cluster.finish("Failed", "BackoffLimitExceeded")

    ended = grant(engine)

    assert (ended.state, ended.reason, ended.is_proof) == (GrantState.ENDED, "DeadlineExceeded", True)


def test_pod_that_still_runs_on_a_lost_server_is_no_proof(engine, cluster):
    engine.request(WISH)
    cluster.pod(phase="Unknown", reason="NodeLost", startTime=BEGAN)
    cluster.finish("Failed", "BackoffLimitExceeded")

    assert grant(engine).is_proof is False


def test_release_waits_for_the_pod_to_go(engine, cluster):
    engine.request(WISH)

    engine.release("berth-1f")

    assert cluster.deleted_by == {"berth-1f": ["Foreground"]}
    assert engine.grants([WISH.tag]) == {}


def test_release_of_what_is_gone_is_no_fault(engine):
    engine.release("berth-1f")


@pytest.mark.parametrize("status", [403, 404, 422])
def test_refusal_is_told_in_the_words_of_the_api(engine, cluster, status):
    cluster.refuses = (status, "jobs.batch is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=2")

    with pytest.raises(Refused, match=r"Kubernetes: jobs\.batch is forbidden: exceeded quota"):
        engine.request(WISH)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_server_in_trouble_has_not_refused(engine, cluster, status):
    cluster.refuses = (status, "etcdserver: request timed out")

    with pytest.raises(NoAnswer, match="etcdserver"):
        engine.request(WISH)
    with pytest.raises(NoAnswer):
        engine.grants([WISH.tag])


def test_server_that_is_away_does_not_answer(engine, cluster):
    cluster.server_close()

    with pytest.raises(NoAnswer, match="does not answer"):
        engine.release("berth-1f")
