# SPDX-License-Identifier: Apache-2.0
"""Recorded HTTP exchanges against spec/openapi.yaml: is the route there, the status declared, the content type right, the
body of the declared shape, the problem code one the route may answer; and which routes and codes have been seen.

    spec = Spec()
    spec.check(method, path, status, headers, body)     # raises Mismatch
    spec.missing(tags={"sandboxes"})                     # (operation, status or code) never seen
"""
import json
import os
import pathlib
import re
import threading

import jsonschema
import yaml

SPEC_FILE = pathlib.Path(__file__).resolve().parents[2] / "spec" / "openapi.yaml"
METHODS = ("get", "post", "put", "patch", "delete")
# Answers of the HTTP layer, for which a route only says `default`.
LAYER_CODES = {"bad_request", "head_too_large", "request_timeout", "method_not_allowed", "internal", "not_found", "too_large"}


class Mismatch(AssertionError):
    """What was seen is not what the document says."""


class Operation:
    def __init__(self, path, method, data):
        self.id = data["operationId"]
        self.path, self.method, self.data = path, method.upper(), data
        self.tags = set(data.get("tags", []))
        self.codes = set(data.get("x-error-codes", []))
        self.regex = re.compile("^" + re.sub(r"\{[^}]+\}", "[^/]+", path) + "$")
        self.literals = len(re.sub(r"\{[^}]+\}", "", path))


class Spec:
    def __init__(self, file=SPEC_FILE):
        with open(file, encoding="utf-8") as f:
            self.document = yaml.safe_load(f)
        self.operations = [Operation(path, method, item[method]) for path, item in self.document["paths"].items()
                           for method in METHODS if method in item]
        self.seen = set()
        self._validators = {}
        self._lock = threading.Lock()
        self._statuses = {}

    def find(self, method, path):
        """The operation of a request, the most literal path first; None when there is none."""
        path = path.split("?")[0]
        fits = [o for o in self.operations if o.regex.match(path)]
        if not fits:
            return None
        best = max(o.literals for o in fits)
        method = "GET" if method == "HEAD" else method
        return next((o for o in fits if o.literals == best and o.method == method), None)

    def _resolve(self, node):
        while isinstance(node, dict) and "$ref" in node:
            ref = node["$ref"]
            node = self.document
            for part in ref.lstrip("#/").split("/"):
                node = node[part]
        return node

    def validate(self, schema, value, where):
        """A value against a schema of the document (references resolve in the whole document)."""
        key = json.dumps(schema, sort_keys=True)
        with self._lock:
            validator = self._validators.get(key)
            if validator is None:
                resolver = jsonschema.RefResolver("", self.document)
                validator = jsonschema.Draft202012Validator(schema, resolver=resolver)
                self._validators[key] = validator
        error = jsonschema.exceptions.best_match(validator.iter_errors(value))
        if error is not None:
            path = "/".join(str(p) for p in error.absolute_path)
            raise Mismatch(f"{where}: {path or '(root)'}: {error.message[:300]}")

    def validate_named(self, name, value):
        """Against components.schemas.<name>, for event data and the like."""
        self.validate({"$ref": f"#/components/schemas/{name}"}, value, name)

    def check(self, method, path, status, headers, body):
        """headers: mapping; body: bytes. Returns the operation (None: not in the document, and refused as such)."""
        headers = {k.lower(): v for k, v in dict(headers).items()}
        content_type = headers.get("content-type", "").split(";")[0].strip()
        operation = self.find(method, path)
        where = f"{method} {path.split('?')[0]} → {status}"
        if operation is None:
            if status not in (404, 405, 400):
                raise Mismatch(f"{where}: the document has no such route")
            self._problem(where, status, content_type, body)
            return None
        responses = operation.data["responses"]
        declared = responses.get(str(status))
        if status >= 400:
            code = self._problem(where, status, content_type, body)["code"]
            self._code(where, operation, status, code, declared)
        else:
            if declared is None:
                raise Mismatch(f"{where}: status is not declared for {operation.id}")
            self._success(where, method, self._resolve(declared), content_type, body)
            code = str(status)
        with self._lock:
            self.seen.add((operation.id, code))
        return operation

    def _success(self, where, method, declared, content_type, body):
        content = declared.get("content")
        if not content:
            if body:
                raise Mismatch(f"{where}: no body was declared")
            return
        if content_type not in content:
            raise Mismatch(f"{where}: content type {content_type!r} is not declared")
        if method == "HEAD" or content_type != "application/json":
            return
        self.validate(content[content_type]["schema"], json.loads(body), where)

    def _problem(self, where, status, content_type, body):
        if content_type != "application/problem+json":
            raise Mismatch(f"{where}: an error of type {content_type!r}")
        problem = json.loads(body)
        self.validate({"$ref": "#/components/schemas/Problem"}, problem, where)
        if problem["status"] != status:
            raise Mismatch(f"{where}: the problem says {problem['status']}")
        return problem

    def _code(self, where, operation, status, code, declared):
        if code in operation.codes and declared is not None:
            with self._lock:
                before = self._statuses.setdefault(code, status)
            if before != status:
                raise Mismatch(f"{where}: code {code} came with {before} elsewhere")
            return
        if code in LAYER_CODES and "default" in operation.data["responses"]:
            return
        raise Mismatch(f"{where}: code {code} is not declared for {operation.id}")

    def missing(self, tags=None, without_codes=()):
        """(operation id, success status or error code) that the document declares and nobody saw."""
        expected = set()
        for o in self.operations:
            if tags is not None and not o.tags & set(tags):
                continue
            expected |= {(o.id, s) for s in o.data["responses"] if s.isdigit() and int(s) < 400}
            expected |= {(o.id, c) for c in o.codes if c not in without_codes}
        return sorted(expected - self.seen)

    def save(self, folder):
        """What this process saw, for another one to add up."""
        with self._lock:
            text = json.dumps({"seen": sorted(self.seen), "statuses": self._statuses})
        (pathlib.Path(folder) / f"{os.getpid()}.json").write_text(text)

    def load(self, folder):
        """Adds what others saw; a code has one status in all of them."""
        for path in pathlib.Path(folder).glob("*.json"):
            saved = json.loads(path.read_text())
            self.seen |= {tuple(row) for row in saved["seen"]}
            for code, status in saved["statuses"].items():
                if self._statuses.setdefault(code, status) != status:
                    raise Mismatch(f"code {code} came with {status} and with {self._statuses[code]}")
