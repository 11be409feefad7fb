#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Turns openapi.yaml into C that holds it as compact JSON: embed_openapi.py INPUT OUTPUT"""
import json
import sys

import yaml


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        text = json.dumps(yaml.safe_load(f), separators=(",", ":"), ensure_ascii=True)
    lines = [text[i:i + 100].replace("\\", "\\\\").replace('"', '\\"') for i in range(0, len(text), 100)]
    with open(sys.argv[2], "w", encoding="utf-8") as f:
        f.write('#include "control/openapi.h"\n\nconst char openapi_json[] =\n')
        f.write("\n".join(f'    "{line}"' for line in lines))
        f.write(";\nconst size_t openapi_json_len = sizeof(openapi_json) - 1;\n")


main()
