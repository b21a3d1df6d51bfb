"""Write the SBOM of an environment with dstreams, as CycloneDX.

    python release/sbom.py PYTHON FILE

PYTHON is the interpreter of an environment with dstreams and its dependencies. uPlot, which is part
of the wheel, is added. Spark's jars, which are part of PySpark, are not listed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "dstreams" / "monitoring" / "web" / "static"


def main(python: str, file: str) -> None:
    """Write the SBOM of the environment of *python* to *file*."""
    bom = about_dstreams(described(python))
    text = json.dumps(bom, indent=2) + "\n"
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        sys.exit(f"the SBOM is not valid CycloneDX 1.6: {problem}")
    Path(file).write_text(text, encoding="utf-8")
    print(f"{len(bom['components'])} components")


def described(python: str) -> dict[str, Any]:
    """Return the CycloneDX description of an environment, reproducibly."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--sv", "1.6"]
    command += ["--output-reproducible", "--no-validate", python]
    found: dict[str, Any] = json.loads(subprocess.check_output(command))
    return found


def about_dstreams(bom: dict[str, Any]) -> dict[str, Any]:
    """Return *bom* with dstreams as its subject, and with uPlot."""
    (subject,) = (part for part in bom["components"] if part["name"] == "dstreams")
    others = [part for part in bom["components"] if part is not subject]
    drawing = uplot()
    for part in (subject, *others):  # remove a local path of the installing machine
        links = part.pop("externalReferences", [])
        links = [link for link in links if not link["url"].startswith("file:")]
        if links:
            part["externalReferences"] = links
    subject["purl"] = f"pkg:pypi/dstreams@{subject['version']}"
    bom["metadata"]["component"] = subject
    bom["components"] = [*others, drawing]
    for dependency in bom["dependencies"]:
        if dependency["ref"] == subject["bom-ref"]:
            dependency.setdefault("dependsOn", []).append(drawing["bom-ref"])
    bom["dependencies"].append({"ref": drawing["bom-ref"]})
    return bom


def uplot() -> dict[str, Any]:
    """Return uPlot, with the version in its file."""
    text = (PAGE / "uplot.min.js").read_text(encoding="utf-8")
    found = re.search(r"uPlot \(v([\d.]+)\)", text)
    if found is None:
        sys.exit("dstreams/monitoring/web/static/uplot.min.js does not say its version")
    version = found[1]
    return {
        "type": "library",
        "bom-ref": f"uplot=={version}",
        "name": "uplot",
        "version": version,
        "purl": f"pkg:npm/uplot@{version}",
        "licenses": [{"license": {"id": "MIT"}}],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
