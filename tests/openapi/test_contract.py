# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document is well-formed (two linters from npm and rules of our own), and the tables in the code and the pages
printed from them say the same as it."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
METHODS = ("get", "post", "put", "patch", "delete")
DOCUMENT = yaml.safe_load((ROOT / "spec/openapi.yaml").read_text())
SCHEMAS = DOCUMENT["components"]["schemas"]
OPERATIONS = [(method, path, item[method]) for path, item in DOCUMENT["paths"].items() for method in METHODS if method in item]


def describe(topic):
    for build in filter(None, [os.environ.get("SPACE_BUILD_DIR"), ROOT / "build", ROOT / "build-control"]):
        program = pathlib.Path(build) / "src/model/space-describe"
        if program.exists():
            return subprocess.run([program, topic], check=True, capture_output=True, text=True).stdout
    raise RuntimeError("space-describe has not been built")


@pytest.fixture(scope="session")
def linters():
    """The programs of package.json; installed the first time, which needs the npm registry."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    if not (HERE / "node_modules/.bin/redocly").exists():
        done = subprocess.run(["npm", "install", "--no-package-lock", "--ignore-scripts", "--silent"], cwd=HERE,
                              capture_output=True, text=True, timeout=600)
        if done.returncode:
            pytest.skip(f"npm install: {done.stderr.strip().splitlines()[-1:]}")
    return HERE


@pytest.mark.parametrize("linter", ["redocly", "spectral"])
def test_linter(linters, linter):
    """No error and no warning."""
    done = subprocess.run(["npm", "run", "--silent", linter], cwd=linters, capture_output=True, text=True, timeout=300)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert not re.search(r"\d+ warning", output), output


@pytest.mark.parametrize("page,topic", [("docs/reference/limits.md", "limits"), ("docs/reference/errors.md", "errors"),
                                        ("spec/states.md", "states")])
def test_pages_are_printed_from_the_tables(page, topic):
    assert (ROOT / page).read_text() == describe(topic), f"run: space-describe {topic} > {page}"


def test_codes_are_the_same_everywhere():
    page = describe("errors")
    assert re.findall(r"^\| `(\w+)` \| \d+ \|", page, re.M) == SCHEMAS["ErrorCode"]["enum"]
    assert re.findall(r"^\| `(\w+)` \| [^|]+ \|$", page, re.M) == SCHEMAS["FailureCode"]["enum"]
    assert re.findall(r"^\| `(\w+)` \| \w* \|", describe("states").split("## Allowed")[0], re.M) == SCHEMAS["SandboxState"]["enum"]


def test_routes_are_the_same():
    """The routing table and the document: method, path, name, scope."""
    source = (ROOT / "src/control/routes.c").read_text()
    rows = re.findall(r'PUBLIC\("(\w+)",\s+"([^"]+)",\s+"(\w+)",\s+(\w+)', source)
    table = {(m, p, a): s for m, p, a, s in rows}
    document = {}
    for method, path, data in OPERATIONS:
        if {"data plane", "service"} & set(data["tags"]):
            continue
        scope = data["x-scope"]
        document[(method.upper(), path, data["operationId"])] = \
            "0" if scope == "any" else "SCOPE_" + scope.replace(":", "_").upper()
    assert table == document


def test_every_code_of_a_route_has_its_status():
    """x-error-codes and responses of a route say the same, by the status of each code."""
    page = describe("errors")
    status = {code: s for code, s in re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.M)}
    for method, path, data in OPERATIONS:
        declared = {s for s in data["responses"] if s.isdigit() and int(s) >= 400}
        assert {status[c] for c in data["x-error-codes"]} == declared, (method, path)
        assert "default" in data["responses"], (method, path)


def test_every_mutation_takes_a_key():
    for method, path, data in OPERATIONS:
        if method == "get" or "data plane" in data["tags"]:
            continue
        parameters = [p.get("$ref", "") for p in data.get("parameters", [])]
        assert "#/components/parameters/IdempotencyKey" in parameters, (method, path)


def test_objects_are_closed():
    """An object of ours says all its fields: additionalProperties is decided everywhere but where JSON passes through."""
    def walk(schema, where):
        if isinstance(schema, dict):
            if schema.get("type") == "object" and "properties" in schema and "additionalProperties" not in schema:
                raise AssertionError(f"{where} is open")
            for key, value in schema.items():
                walk(value, f"{where}.{key}")
        elif isinstance(schema, list):
            for i, value in enumerate(schema):
                walk(value, f"{where}[{i}]")
    walk(SCHEMAS, "schemas")


def test_limits_are_the_same():
    """Numbers of the document that are limits in the code."""
    limits = {n: int(v) for n, v in re.findall(r"^\| `(\w+)` \| (\d+) \|", describe("limits"), re.M)}
    sandbox, session, template = (SCHEMAS[n]["properties"] for n in ("SandboxCreate", "SessionCreate", "TemplateRegister"))
    lifecycle, checkpoint = (SCHEMAS[n]["properties"] for n in ("Lifecycle", "Checkpoint"))
    del sandbox
    pairs = {
        "name_bytes": SCHEMAS["Name"]["maxLength"], "metadata_entries": SCHEMAS["Metadata"]["maxProperties"],
        "metadata_value_bytes": SCHEMAS["Metadata"]["additionalProperties"]["maxLength"],
        "env_entries": SCHEMAS["Env"]["maxProperties"], "env_value_bytes": SCHEMAS["Env"]["additionalProperties"]["maxLength"],
        "lifecycle_seconds": lifecycle["max_life_s"]["maximum"],
        "checkpoint_keep_last": checkpoint["keep_last"]["maximum"],
        "checkpoint_keep_hourly": checkpoint["keep_hourly"]["maximum"],
        "checkpoint_keep_daily": checkpoint["keep_daily"]["maximum"],
        "fork_count": SCHEMAS["Fork"]["properties"]["count"]["maximum"],
        "fork_name_bytes": SCHEMAS["Fork"]["properties"]["name"]["maxLength"],
        "pool_size": SCHEMAS["PoolSize"]["maximum"],
        "vcpus_max": SCHEMAS["Resources"]["properties"]["vcpus"]["maximum"],
        "memory_mib_min": SCHEMAS["Resources"]["properties"]["memory_mib"]["minimum"],
        "memory_mib_max": SCHEMAS["Resources"]["properties"]["memory_mib"]["maximum"],
        "command_bytes": session["command"]["maxLength"], "args_items": session["args"]["maxItems"],
        "arg_bytes": session["args"]["items"]["maxLength"], "cwd_bytes": session["cwd"]["maxLength"],
        "user_bytes": session["user"]["maxLength"], "timeout_s": session["timeout_s"]["maximum"],
        "pty_size": SCHEMAS["PtySize"]["properties"]["cols"]["maximum"],
        "template_name_bytes": SCHEMAS["TemplateName"]["maxLength"],
        "template_size_bytes": template["size_bytes"]["maximum"],
        "template_reference_bytes": SCHEMAS["TemplateReference"]["maxLength"],
        "page_max": DOCUMENT["components"]["parameters"]["Limit"]["schema"]["maximum"],
        "page_default": DOCUMENT["components"]["parameters"]["Limit"]["schema"]["default"],
        "cursor_bytes": DOCUMENT["components"]["parameters"]["Cursor"]["schema"]["maxLength"],
        "idempotency_key_bytes": DOCUMENT["components"]["parameters"]["IdempotencyKey"]["schema"]["maxLength"],
        "token_scopes": SCHEMAS["TokenCreate"]["properties"]["scopes"]["maxItems"],
        "token_expires_s": SCHEMAS["TokenCreate"]["properties"]["expires_in_s"]["maximum"],
        "token_grace_s": SCHEMAS["TokenRotate"]["properties"]["grace_s"]["maximum"],
        "quota_sandboxes": SCHEMAS["Quotas"]["properties"]["max_sandboxes"]["default"],
        "quota_vcpus": SCHEMAS["Quotas"]["properties"]["max_vcpus"]["default"],
        "quota_memory_mib": SCHEMAS["Quotas"]["properties"]["max_memory_mib"]["default"],
        "quota_sessions": SCHEMAS["Quotas"]["properties"]["max_sessions_per_sandbox"]["default"],
        "quota_requests": SCHEMAS["Quotas"]["properties"]["requests_per_second"]["default"],
    }
    assert {n: limits[n] for n in pairs} == pairs
