# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, the tables in the code and the pages made from them say the same; and after all other tests of this
folder (hence the name) every management route and every error code of it has been seen."""
import json
import pathlib
import re
import subprocess

import pytest
import yaml
from harness import ROOT, SPEC, build_file


def test_served_document_is_the_file(api):
    assert api.get("/openapi.json").json == json.loads(json.dumps(SPEC.document))


@pytest.mark.parametrize("page,name", [("docs/reference/limits.md", "limits"), ("docs/reference/errors.md", "errors"),
                                       ("spec/states.md", "states")])
def test_pages_are_printed_from_the_tables(page, name):
    printed = subprocess.run([str(build_file("src/model/space-describe")), name], check=True, capture_output=True, text=True)
    assert (ROOT / page).read_text() == printed.stdout, f"run: space-describe {name} > {page}"


def test_codes_are_the_same_everywhere():
    schemas = SPEC.document["components"]["schemas"]
    page = (ROOT / "docs/reference/errors.md").read_text()
    codes = re.findall(r"^\| `(\w+)` \| \d+ \|", page, re.M)
    failures = re.findall(r"^\| `(\w+)` \| [^|]+ \|$", page, re.M)
    assert codes == schemas["ErrorCode"]["enum"] and failures == schemas["FailureCode"]["enum"]


def test_routes_are_the_same():
    """The routing table and the document, scope included."""
    source = (ROOT / "src/control/routes.c").read_text()
    rows = re.findall(r'PUBLIC\("(\w+)",\s+"([^"]+)",\s+"(\w+)",\s+(\w+)', source)
    table = {(m, p, a): s for m, p, a, s in rows}
    document = {}
    for o in SPEC.operations:
        if "data plane" in o.tags or "service" in o.tags:
            continue
        scope = o.data["x-scope"]
        document[(o.method, o.path, o.id)] = "0" if scope == "any" else "SCOPE_" + scope.replace(":", "_").upper()
    assert table == document


def test_states_of_the_document():
    states = re.findall(r"^\| `(\w+)` \| \w* \|", (ROOT / "spec/states.md").read_text(), re.M)
    assert states == SPEC.document["components"]["schemas"]["SandboxState"]["enum"]


def test_metrics_hold_no_names(api, world):
    text = api.get("/metrics").raw.decode()
    assert "space_sandboxes{state=\"running\"}" in text and "space_http_request_duration_seconds_bucket" in text
    for word in ("sbx_", "ten_", "tok_", "default", "node-a"):
        assert word not in text
    for line in text.splitlines():
        assert line.startswith("# TYPE ") or re.match(r'^[a-z_]+(\{[^}]*\})? [0-9.e+]+$', line), line


def test_lint_configuration_is_there():
    package = json.loads((ROOT / "tests/openapi/package.json").read_text())
    assert {"@redocly/cli", "@stoplight/spectral-cli"} <= set(package["devDependencies"])
    assert yaml.safe_load((ROOT / "tests/openapi/.spectral.yaml").read_text())
    assert not pathlib.Path(ROOT / "tests/openapi/package-lock.json").exists()


def test_every_route_and_code_was_seen(request):
    """Only meaningful when the whole folder ran."""
    if len({item.path.name for item in request.session.items}) < 9:
        pytest.skip("not the whole folder")
    management = {t["name"] for t in SPEC.document["tags"]} - {"data plane"}
    missing = SPEC.missing(tags=management)
    assert not missing, missing
