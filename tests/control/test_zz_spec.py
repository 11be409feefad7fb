# SPDX-License-Identifier: Apache-2.0
"""After all other tests of this folder (hence the name) every management route and every error code of it has been seen. That
the document agrees with the code is tests/openapi."""
import json
import os
import re

import pytest
from harness import SPEC


def test_served_document_is_the_file(api):
    assert api.get("/openapi.json").json == json.loads(json.dumps(SPEC.document))


def test_metrics_hold_no_names(api, world):
    text = api.get("/metrics").raw.decode()
    assert "space_sandboxes{state=\"running\"}" in text and "space_http_request_duration_seconds_bucket" in text
    for word in ("sbx_", "ten_", "tok_", "default", "node-a"):
        assert word not in text
    for line in text.splitlines():
        assert line.startswith("# TYPE ") or re.match(r'^[a-z_]+(\{[^}]*\})? [0-9.e+]+$', line), line


def test_every_route_and_code_was_seen(request):
    """Only meaningful when the whole folder ran, in this process or before by others that left what they saw (SPACE_SPEC_SEEN)."""
    if seen := os.environ.get("SPACE_SPEC_SEEN"):
        SPEC.load(seen)
    elif len({item.path.name for item in request.session.items}) < 9:
        pytest.skip("not the whole folder")
    management = {t["name"] for t in SPEC.document["tags"]} - {"data plane"}
    missing = SPEC.missing(tags=management)
    assert not missing, missing
