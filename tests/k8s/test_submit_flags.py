"""From flags, a job file and pod templates to the manifests of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic_launch.k8s.main import main
from elastic_launch.k8s.manifests import manifests, network_policy
from elastic_launch.k8s.merging import merge
from elastic_launch.k8s.naming import REQUEST_ANNOTATION
from elastic_launch.k8s.request import JobRequest, decode
from elastic_launch.k8s.worker_pod import worker_pod

BASE = ["submit", "digits", "--image", "digits:1", "--dry-run"]


def dry_run(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[dict[str, Any], JobRequest]:
    """The manifests by their kind, and what was asked for."""
    assert main([*flags]) == 0
    parts = list(yaml.safe_load_all(capsys.readouterr().out))
    return {part["kind"]: part for part in parts}, decode(parts[0]["metadata"]["annotations"][REQUEST_ANNOTATION])


def worker(request: JobRequest) -> dict[str, Any]:
    return worker_pod(request, 0, "uid", "10.0.0.1")


def test_a_worker_pod_runs_the_launcher_without_any_rights(capsys: pytest.CaptureFixture[str]) -> None:
    _, request = dry_run(
        capsys, *BASE, "--min", "2", "--max", "3", "--nproc-per-pod", "2", "--", "-m", "my.train", "--x"
    )
    pod = worker(request)
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    words = container["command"]
    assert words[0] == "elastic-launch" and words[-3:] == ["-m", "my.train", "--x"]
    flags = dict(zip(words[1:-3:2], words[2:-3:2], strict=True))
    assert flags["--rendezvous"] == "http://10.0.0.1:29600"
    assert (flags["--min"], flags["--max"], flags["--nproc-per-node"]) == ("4", "6", "2")
    assert spec["enableServiceLinks"] is False, "a job may be named elastic"
    assert spec["automountServiceAccountToken"] is False and spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    variables = {known["name"]: known for known in container["env"]}
    assert variables["ELASTIC_POD_UID"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.uid"
    assert variables["ELASTIC_ADVERTISE_ADDRESS"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"


def test_all_pods_of_a_job_read_one_token_from_its_secret_and_each_job_has_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parts, request = dry_run(capsys, *BASE, "--", "train.py")
    secret = parts["Secret"]
    for spec in (worker(request)["spec"], parts["Job"]["spec"]["template"]["spec"]):
        (volume,) = [volume for volume in spec["volumes"] if volume["name"] == "token"]
        assert volume["secret"] == {"secretName": secret["metadata"]["name"], "defaultMode": 0o440}
        container = spec["containers"][0]
        (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "token"]
        file = container["command"][container["command"].index("--token-file") + 1]
        assert file in {f"{mount['mountPath']}/{key}" for key in secret["stringData"]} and mount["readOnly"]
    again, _ = dry_run(capsys, *BASE, "--", "train.py")
    assert again["Secret"]["stringData"] != secret["stringData"] and len(secret["stringData"]["token"]) >= 32
    assert not [rule for rule in parts["Role"]["rules"] if "secrets" in rule["resources"]]


def test_worker_pods_are_owned_by_the_job_but_are_none_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    parts, request = dry_run(capsys, *BASE, "--", "train.py")
    pod = worker(request)
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Job", "uid", False)
    controller = parts["Job"]["spec"]["template"]["metadata"]["labels"]
    assert pod["metadata"]["labels"] != controller and "selector" not in parts["Job"]["spec"]
    assert parts["Service"]["spec"]["selector"].items() <= controller.items()


def test_the_controllers_rights_are_few_and_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    parts, _ = dry_run(capsys, *BASE, "--", "train.py")
    rules = parts["Role"]["rules"]
    assert all("*" not in rule["verbs"] + rule["resources"] for rule in rules)
    by_resource = {rule["resources"][0]: rule for rule in rules}
    assert by_resource["jobs"]["resourceNames"] == ["digits"]
    assert by_resource["configmaps"]["resourceNames"] == ["digits-state", "digits-status"]
    assert set(by_resource) == {"pods", "configmaps", "jobs", "events"}
    without, _ = dry_run(capsys, *BASE, "--controller-service-account", "there", "--", "train.py")
    assert not {"Role", "RoleBinding", "ServiceAccount"} & without.keys()


def test_every_flag_comes_to_stand_in_the_pod(capsys: pytest.CaptureFixture[str]) -> None:
    parts, request = dry_run(
        capsys,
        *BASE,
        *("--cpu", "2", "--memory", "4Gi", "--gpu", "2", "--priority-class", "low", "--env", "A=b=c"),
        *("--volume", "host:/data:/in:ro", "--volume", "claim:mine:/out", "--volume", "config:conf:/etc/conf"),
        *("--node-selector", "pool=spot", "--toleration", "spot=yes:NoSchedule", "--toleration", "gpu"),
        *("--service-account", "me", "--image-pull-policy", "Never", "--ttl", "60", "--backoff-limit", "7"),
        *("--active-deadline", "3600", "--grace-period", "90", "--", "train.py"),
    )
    spec = worker(request)["spec"]
    container = spec["containers"][0]
    assert container["resources"]["requests"] == {"cpu": "2", "memory": "4Gi"}
    assert container["resources"]["limits"] == {"memory": "4Gi", "nvidia.com/gpu": "2"}
    assert request.nproc_per_pod == 2, "a worker for each GPU"
    assert spec["priorityClassName"] == "low" and spec["serviceAccountName"] == "me"
    assert {"name": "A", "value": "b=c"} in container["env"]
    sources = [{key: value for key, value in volume.items() if key != "name"} for volume in spec["volumes"]]
    assert sources[2:] == [
        {"hostPath": {"path": "/data"}},
        {"persistentVolumeClaim": {"claimName": "mine"}},
        {"configMap": {"name": "conf"}},
    ]
    assert container["volumeMounts"][2] == {"name": "volume-0", "mountPath": "/in", "readOnly": True}
    assert spec["nodeSelector"] == {"pool": "spot"}
    assert {"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoSchedule"} in spec["tolerations"]
    assert {"key": "gpu", "operator": "Exists"} in spec["tolerations"]
    assert container["imagePullPolicy"] == "Never" and spec["terminationGracePeriodSeconds"] == 90
    assert parts["Job"]["spec"]["ttlSecondsAfterFinished"] == 60
    assert request.backoff_limit == 7 and request.active_deadline == 3600


def test_a_job_file_says_the_same_and_flags_overrule_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump({"hostNetwork": True}))
    content = {
        "name": "digits",
        "image": "digits:1",
        "min": 2,
        "max": 4,
        "env": {"A": 1},
        "volume": ["claim:mine:/out"],
        "pod-template": "pod.yaml",
        "command": ["train.py", "--epochs", 3],
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(content))
    _, request = dry_run(capsys, "submit", "-f", str(tmp_path / "job.yaml"), "--max", "8", "--dry-run")
    assert (request.min, request.max, request.env) == (2, 8, {"A": "1"})
    assert request.command == ["train.py", "--epochs", "3"]
    assert worker(request)["spec"]["hostNetwork"] is True


def test_a_pod_template_is_merged_by_names_and_cannot_take_the_jobs_labels(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    template = {
        "metadata": {"labels": {"team": "a", "elastic-launch/job": "other"}, "annotations": {"x": "y"}},
        "spec": {
            "containers": [{"env": [{"name": "A", "value": "1"}]}, {"name": "sidecar", "image": "proxy:1"}],
            "securityContext": {"runAsUser": 7},
        },
    }
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(template))
    _, request = dry_run(capsys, *BASE, "--env", "A=0", "--pod-template", str(file), "--", "train.py")
    pod = worker(request)
    first, sidecar = pod["spec"]["containers"]
    assert first["name"] == "worker" and {"name": "A", "value": "1"} in first["env"]
    assert sidecar == {"name": "sidecar", "image": "proxy:1"}
    assert pod["spec"]["securityContext"]["runAsUser"] == 7 and pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert pod["metadata"]["labels"]["elastic-launch/job"] == "digits" and pod["metadata"]["labels"]["team"] == "a"


def test_null_removes_and_lists_without_names_are_joined() -> None:
    assert merge({"a": 1, "b": {"c": 2}}, {"b": None}) == {"a": 1}
    assert merge({"a": [{"x": 1}]}, {"a": [{"y": 2}]}) == {"a": [{"x": 1}, {"y": 2}]}
    mounts = [{"name": "v", "mountPath": "/a"}]
    assert merge(mounts, [{"name": "v", "mountPath": "/b"}]) == [*mounts, {"name": "v", "mountPath": "/b"}]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["submit", "Digits", "--image", "a", "--", "t.py"], "cannot be a job's name"),
        (["submit", "digits", "--image", "a"], "the script is missing"),
        (["submit", "digits", "--", "t.py"], "--image is missing"),
        ([*BASE, "--min", "3", "--max", "2", "--", "t.py"], "--min 3 --max 2"),
        ([*BASE, "--volume", "/data:/data", "--", "t.py"], "is no volume"),
        ([*BASE, "--env", "A", "--", "t.py"], "is no pair"),
        ([*BASE, "--toleration", "a:Never", "--", "t.py"], "is no toleration"),
        ([*BASE, "--pod-template", "missing.yaml", "--", "t.py"], "cannot be read"),
        ([*BASE, "--store", "redis://x", "--", "t.py"], "--store"),
        (["submit", "-f", "missing.yaml"], "missing.yaml"),
    ],
)
def test_what_cannot_work_is_told_with_what_to_do(
    capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(flags)
    assert ended.value.code == 2 and words in capsys.readouterr().err


def test_an_unknown_word_in_a_job_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("replicas: 3\n")
    with pytest.raises(SystemExit):
        main(["submit", "-f", str(tmp_path / "job.yaml")])
    assert "'replicas' is none of" in capsys.readouterr().err


def test_the_network_policy_lets_in_only_the_job_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert "NetworkPolicy" in dry_run(capsys, *BASE, "--network-policy", "--", "t.py")[0]
    assert "NetworkPolicy" not in dry_run(capsys, *BASE, "--", "t.py")[0]
    request = JobRequest(name="digits", image="a", command=["t.py"])
    spec = network_policy(request)["spec"]
    assert spec["podSelector"] == spec["ingress"][0]["from"][0]["podSelector"]
    assert all(part["metadata"]["namespace"] == "here" for part in manifests(request, "here"))
