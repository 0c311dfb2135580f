"""The chart renders what the page of deployments says, and refuses values that endanger data."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from kvorum.process.settings.environment import from_environment
from tests.deploy.pods import CHART, SCRIPT

Objects = dict[tuple[str, str], Any]
TLS = ("tls.enabled=true", "tls.issuerRef.name=ca", "tls.issuerRef.kind=Issuer")
EVERYTHING = (
    *TLS,
    "authSecret=root",
    "backup.enabled=true",
    "metrics.serviceMonitor=true",
    "metrics.prometheusRule=true",
    "metrics.dashboard=true",
    "metrics.labels.release=prometheus",
    "antiAffinity=required",
    "settings.ETCD_LOG_LEVEL=debug",
)


@cache
def helm(*values: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("helm")
    if program is None:
        pytest.skip("there is no helm")
    settings = [f"--set={each}" for each in values]
    command = [program, "template", "kvorum", str(CHART), "--namespace=data", *settings]
    return subprocess.run(
        [*command, "--kube-version=1.30.0"], capture_output=True, text=True, check=False
    )


def rendered(*values: str) -> Objects:
    done = helm(*values)
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.safe_load_all(done.stdout) if each]
    objects = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(objects) == len(found)
    return objects


def pod_specs(objects: Objects) -> Iterator[dict[str, Any]]:
    for (kind, _), each in objects.items():
        if kind in ("StatefulSet", "Job"):
            yield each["spec"]["template"]["spec"]
        elif kind == "CronJob":
            yield each["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        elif kind == "Pod":
            yield each["spec"]


def variables(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in container["env"]}


def keys(values: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    """Yield every value of the chart that its schema does not know, and the reverse."""
    known = schema["properties"]
    yield from values.keys() ^ known.keys()
    for name, value in values.items():
        if isinstance(value, dict) and "properties" in known.get(name, ()):
            yield from keys(value, known[name])


def test_the_schema_knows_every_value() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    # Helm passes values of a chart above this one.
    assert list(keys(values, schema)) == ["global"]


def test_every_pod_is_confined() -> None:
    specs = list(pod_specs(rendered(*EVERYTHING)))
    assert len(specs) == 4
    for spec in specs:
        assert spec["automountServiceAccountToken"] is False
        # Else Kubernetes sets variables that the server takes for its own.
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            mounted = {each["name"] for each in container["volumeMounts"]}
            claims = {"data"} & mounted
            assert mounted == {each["name"] for each in spec["volumes"]} | claims


@pytest.mark.parametrize("values", [(), EVERYTHING])
def test_the_server_knows_every_variable(values: tuple[str, ...]) -> None:
    (container,) = rendered(*values)["StatefulSet", "kvorum"]["spec"]["template"]["spec"][
        "containers"
    ]
    given, warnings = from_environment(variables(container), {})
    assert warnings == [] and given["data-dir"] == "/var/lib/kvorum/data"
    assert ("client-cert-auth" in given) == ("peer-client-cert-auth" in given) == bool(values)
    urls = {name: value for name, value in variables(container).items() if name.endswith("_URLS")}
    scheme = "https" if values else "http"
    host = "$(ETCD_NAME).kvorum-peers.data.svc"
    assert urls == {
        "ETCD_LISTEN_CLIENT_URLS": f"{scheme}://0.0.0.0:2379",
        "ETCD_ADVERTISE_CLIENT_URLS": f"{scheme}://{host}:2379",
        "ETCD_LISTEN_PEER_URLS": f"{scheme}://0.0.0.0:2380",
        "ETCD_INITIAL_ADVERTISE_PEER_URLS": f"{scheme}://{host}:2380",
        "ETCD_LISTEN_METRICS_URLS": "http://0.0.0.0:2381",
    }


def test_scaling_restarts_no_member() -> None:
    three, five = rendered(), rendered("replicaCount=5")
    sets = [each["StatefulSet", "kvorum"]["spec"] for each in (three, five)]
    assert sets[0]["template"] == sets[1]["template"]
    assert [each["replicas"] for each in sets] == [3, 5]
    listed = five["ConfigMap", "kvorum"]["data"]["members"].split(",")
    assert listed[4] == "kvorum-4=http://kvorum-4.kvorum-peers.data.svc:2380"
    assert len(listed) == 5
    assert five["ConfigMap", "kvorum"]["data"]["member.py"].strip() == SCRIPT.read_text().strip()


def test_members_that_go_are_removed_first() -> None:
    job = rendered("replicaCount=1")["Job", "kvorum-shrink"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade,pre-rollback"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][-3:] == ["shrink", "kvorum", "1"]


def test_members_find_each_other_before_they_are_ready() -> None:
    objects = rendered()
    peers = objects["Service", "kvorum-peers"]["spec"]
    assert peers["clusterIP"] == "None" and peers["publishNotReadyAddresses"] is True
    stateful = objects["StatefulSet", "kvorum"]
    assert stateful["spec"]["podManagementPolicy"] == "Parallel"
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    for service in ("kvorum", "kvorum-peers"):
        assert objects["Service", service]["spec"]["selector"].items() <= labels.items()
    budget = objects["PodDisruptionBudget", "kvorum"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= labels.items()


def test_certificates_have_the_names_that_members_and_clients_use() -> None:
    objects = rendered(*EVERYTHING)
    for side in ("client", "peer"):
        certificate = objects["Certificate", f"kvorum-{side}"]["spec"]
        assert certificate["secretName"] == f"kvorum-{side}-tls"
        assert {"server auth", "client auth"} <= set(certificate["usages"])
        for ordinal in range(3):
            assert f"kvorum-{ordinal}.kvorum-peers.data.svc" in certificate["dnsNames"]
    assert "kvorum.data.svc" in objects["Certificate", "kvorum-client"]["spec"]["dnsNames"]
    own = rendered("tls.enabled=true", "tls.clientSecret=c", "tls.peerSecret=p")
    volumes = own["StatefulSet", "kvorum"]["spec"]["template"]["spec"]["volumes"]
    assert {each["secret"]["secretName"] for each in volumes if "secret" in each} == {"c", "p"}
    assert not any(kind == "Certificate" for kind, _ in own)


def test_what_watches_the_cluster_finds_it() -> None:
    objects = rendered(*EVERYTHING)
    monitor = objects["ServiceMonitor", "kvorum"]
    labels = objects["Service", "kvorum-peers"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["endpoints"]
    # etcd's own rules select such jobs.
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "etcd-kvorum"}]
    rules = objects["PrometheusRule", "kvorum"]["spec"]
    assert rules == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    dashboard = objects["ConfigMap", "kvorum-dashboard"]["data"]["kvorum.json"]
    assert json.loads(dashboard)["uid"] == "kvorum"


def test_backups_ask_the_members_themselves() -> None:
    objects = rendered(*EVERYTHING)
    spec = objects["CronJob", "kvorum-backup"]["spec"]
    (container,) = spec["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    endpoints = variables(container)["KVORUMCTL_ENDPOINTS"].split(",")
    assert endpoints[2] == "https://kvorum-2.kvorum-peers.data.svc:2379"
    claim = objects["PersistentVolumeClaim", "kvorum-backup"]["metadata"]
    assert claim["annotations"]["helm.sh/resource-policy"] == "keep"
    assert not any(name == "kvorum-backup" for _, name in rendered())


@pytest.mark.parametrize(
    "value",
    [
        "replicaCount=0",
        "replicas=3",
        "tls.enabled=true",
        "settings.DATA_DIR=/data",
        "image.digest=latest",
        "antiAffinity=never",
    ],
)
def test_values_that_mean_nothing_are_refused(value: str) -> None:
    done = helm(value)
    assert done.returncode != 0 and "values don't meet the specifications" in done.stderr
