"""The Kubernetes API as this package needs it: plain JSON in and out, a time limit on every call, errors of our own.

The official client finds the cluster, authenticates and speaks HTTP. Its models are not used: they refuse objects of
servers that are older or newer than themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION, KubeConfigLoader, KubeConfigMerger

from .errors import ClusterError, Conflict, Expired, NotFound, NotStarted, Refused, Unreachable

Json = dict[str, Any]

_CONNECT, _ANSWER, _DAY = 2.0, 8.0, 24 * 3600.0  # seconds
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# The kubelet's words for a container without a log; the API has no code for it but 400.
_NO_LOG_YET = re.compile("is waiting to start|is not available$|is terminated$")


class Cluster:
    """One namespace of a cluster. Every method blocks, for at most about ten seconds, and raises `ClusterError`s."""

    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self.namespace = namespace
        self.core = client.CoreV1Api(api)
        self.batch = client.BatchV1Api(api)
        self.networking = client.NetworkingV1Api(api)
        self.rbac = client.RbacAuthorizationV1Api(api)

    @classmethod
    def connect(cls, namespace: str = "", context: str | None = None) -> Cluster:
        """The cluster of this pod, else that of KUBECONFIG or ~/.kube/config. ClusterError if there is none."""
        settings = client.Configuration()
        with _configured():
            if _is_this_pods(context):
                config.load_incluster_config(client_configuration=settings)
            else:
                config.load_kube_config(context=context, client_configuration=settings)
        settings.retries = urllib3.Retry(0)  # whoever calls decides what to do
        settings.connection_pool_maxsize = 8
        if not settings.verify_ssl:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        return cls(client.ApiClient(settings), namespace or default_namespace(context))

    # --- objects -----------------------------------------------------------------------------------------------------

    def create(self, body: Json) -> Json:
        """Conflict if there is one of that name."""
        call = {
            "Pod": self.core.create_namespaced_pod,
            "Service": self.core.create_namespaced_service,
            "Secret": self.core.create_namespaced_secret,
            "ConfigMap": self.core.create_namespaced_config_map,
            "ServiceAccount": self.core.create_namespaced_service_account,
            "Event": self.core.create_namespaced_event,
            "Job": self.batch.create_namespaced_job,
            "Role": self.rbac.create_namespaced_role,
            "NetworkPolicy": self.networking.create_namespaced_network_policy,
            "RoleBinding": self.rbac.create_namespaced_role_binding,
        }[body["kind"]]
        return self._json(call, self.namespace, body)

    def pods(self, selector: str) -> list[Json]:
        return self._items(self.core.list_namespaced_pod, label_selector=selector)

    def jobs(self, selector: str) -> list[Json]:
        return self._items(self.batch.list_namespaced_job, label_selector=selector)

    def config_maps(self, selector: str) -> list[Json]:
        return self._items(self.core.list_namespaced_config_map, label_selector=selector)

    def events(self, field_selector: str) -> list[Json]:
        return self._items(self.core.list_namespaced_event, field_selector=field_selector)

    def pod(self, name: str) -> Json:
        return self._json(self.core.read_namespaced_pod, name, self.namespace)

    def delete_pod(self, name: str, uid: str = "") -> None:
        """With its grace period. NotFound or Conflict if it is not there, or is another one of that name."""
        body = {"preconditions": {"uid": uid}} if uid else {}
        self._json(self.core.delete_namespaced_pod, name, self.namespace, body=body)

    def job(self, name: str) -> Json:
        return self._json(self.batch.read_namespaced_job, name, self.namespace)

    def patch_job(self, name: str, patch: Json) -> Json:
        return self._json(self.batch.patch_namespaced_job, name, self.namespace, patch)

    def delete_job(self, name: str, wait_for_parts: bool = False) -> None:
        """With all that it owns."""
        body = {"propagationPolicy": "Foreground" if wait_for_parts else "Background"}
        self._json(self.batch.delete_namespaced_job, name, self.namespace, body=body)

    def config_map(self, name: str) -> Json:
        return self._json(self.core.read_namespaced_config_map, name, self.namespace)

    def replace_config_map(self, body: Json) -> Json:
        """Conflict if it has changed since `body` was read (its resourceVersion)."""
        return self._json(self.core.replace_namespaced_config_map, body["metadata"]["name"], self.namespace, body)

    def log(self, pod: str, container: str, follow: bool = False, tail: int | None = None) -> Iterator[bytes]:
        """Pieces of a container's output. Without a limit on silence: it may be quiet for hours."""
        options: dict[str, Any] = {
            "_request_timeout": (_CONNECT, _DAY if follow else _ANSWER),
            "_preload_content": False,
        }
        if tail is not None:
            options["tail_lines"] = tail
        with told():
            answer: Any = self.core.read_namespaced_pod_log(
                pod, self.namespace, container=container, follow=follow, **options
            )
        with told():
            yield from answer.stream(4096)

    def _items(self, call: Any, **selectors: str) -> list[Json]:
        items: list[Json] = self._json(call, self.namespace, **selectors)["items"]
        return items

    def _json(self, call: Any, *arguments: Any, **options: Any) -> Json:
        with told():
            answer = call(*arguments, **options, _preload_content=False, _request_timeout=(_CONNECT, _ANSWER))
            parsed: Json = json.loads(answer.data)
        return parsed


def default_namespace(context: str | None = None) -> str:
    """Where objects belong for which no namespace is given. No server is asked, and there need not be a kubeconfig."""
    with _configured():
        if _is_this_pods(context):
            return _NAMESPACE_FILE.read_text().strip()
        known = KubeConfigMerger(KUBE_CONFIG_DEFAULT_LOCATION).config
        if known is None and context is None:
            return "default"
        active = KubeConfigLoader(config_dict=known, active_context=context).current_context
        return str(active["context"].get("namespace") or "default")


def _is_this_pods(context: str | None) -> bool:
    return _NAMESPACE_FILE.exists() and context is None


@contextmanager
def _configured() -> Iterator[None]:
    try:
        yield
    except (ConfigException, OSError, yaml.YAMLError) as error:
        raise ClusterError(f"no cluster is known: {error}. Set KUBECONFIG to the path of a kubeconfig") from error


@contextmanager
def told() -> Iterator[None]:
    """The official client's errors as ours."""
    try:
        yield
    except ApiException as error:
        raise _error(error.status or 0, _message(error)) from error
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise Unreachable(f"the API server{_address(error)} does not answer: {_why(error)}") from error


def _address(error: Exception) -> str:
    pool = error.pool if isinstance(error, urllib3.exceptions.PoolError) else None
    return f" {pool.scheme}://{pool.host}:{pool.port}" if isinstance(pool, urllib3.HTTPConnectionPool) else ""


def _why(error: Exception) -> str:
    """In the system's own few words, which the clients wrap in names of their objects."""
    cause = getattr(error, "reason", None) or error
    link = cause
    while link is not None:
        if isinstance(link, OSError):
            return link.strerror or str(link)
        link = link.__cause__ or link.__context__
    return str(cause)


def _error(status: int, message: str) -> ClusterError:
    if status == 404:
        return NotFound(message)
    if status == 409:
        return Conflict(message)
    if status == 410:
        return Expired(message)
    if status == 400 and _NO_LOG_YET.search(message):
        return NotStarted(message)
    if status == 0 or status == 429 or status >= 500:
        return Unreachable(f"the API server answers {status}: {message}")
    return Refused(message)


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason or error.body or error)
