"""The manifests of deploy.md by the schemas of Kubernetes: no cluster was there to run them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cluster import ROOT
from tests.support.documentation import read_page

validation = pytest.importorskip("kubernetes_validate", reason="pip install -e '.[test]'")

PAGE = read_page((ROOT / "docs/pages/how-to/deploy.md").read_text(encoding="utf-8"))


def manifests() -> list[dict[str, Any]]:
    import yaml  # noqa: PLC0415 - comes with kubernetes-validate

    texts = [block.text for block in PAGE.blocks if block.language == "yaml"]
    return [found for text in texts for found in yaml.safe_load_all(text)]


def validate(manifest: dict[str, Any]) -> None:
    """Fail where a field is unknown, missing or of another type."""
    validation.validate(manifest, validation.latest_version(), strict=True)


def test_manifests() -> None:
    """All manifests fit the newest version of Kubernetes that is known."""
    found = manifests()
    assert [one["kind"] for one in found] == ["StatefulSet"]
    for manifest in found:
        validate(manifest)


@pytest.mark.parametrize(
    "change", [{"replicas": "one"}, {"replica": 1}, {"template": {"spec": {"containers": [{}]}}}]
)
def test_faults_are_found(change: dict[str, Any]) -> None:
    """Values of another type, unknown fields and missing ones are rejected."""
    (manifest,) = manifests()
    manifest["spec"] |= change
    with pytest.raises(validation.ValidationError):
        validate(manifest)
