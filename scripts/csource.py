# SPDX-License-Identifier: Apache-2.0
"""A small scanner for C sources, enough to find functions and count in them. Not a parser: it removes comments,
strings and preprocessor lines (taking the first branch of every conditional), then follows braces."""
import re
import subprocess

TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL)
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
NOT_A_NAME = {"if", "for", "while", "switch", "return", "sizeof", "defined", "__attribute__", "_Generic"}


def tracked_files(root, *patterns):
    """Files of the tree as git sees them, new ones included, ignored ones not."""
    out = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns],
                         cwd=root, capture_output=True, check=True).stdout
    names = [name for name in out.decode(errors="surrogateescape").split("\0") if name]
    return sorted({root / name for name in names if (root / name).is_file() and not (root / name).is_symlink()})


def blank(match):
    """Keeps the line structure of what it removes; a literal leaves an empty one."""
    text = match.group(0)
    kept = "\n" * text.count("\n")
    return kept + ('""' if text[0] == '"' else "0" if text[0] == "'" else " ")


def strip(text):
    text = TOKEN.sub(blank, text)
    lines = text.split("\n")
    keep = []
    skipping = []  # one entry for each open conditional: are we in a branch that is not taken?
    in_directive = False
    for line in lines:
        directive = in_directive or line.lstrip().startswith("#")
        if directive and not in_directive:
            word = line.lstrip()[1:].split()
            kind = word[0] if word else ""
            if kind in ("if", "ifdef", "ifndef"):
                skipping.append(False)
            elif kind in ("else", "elif") and skipping:
                skipping[-1] = True
            elif kind == "endif" and skipping:
                skipping.pop()
        in_directive = directive and line.rstrip().endswith("\\")
        keep.append("" if directive or any(skipping) else line)
    return "\n".join(keep)


def match_back(text, end):
    """The opening parenthesis that belongs to the closing one at `end`."""
    depth = 0
    for i in range(end, -1, -1):
        if text[i] == ")":
            depth += 1
        elif text[i] == "(":
            depth -= 1
            if depth == 0:
                return i
    return -1


def function_name(text, brace):
    """The name of the function whose body opens at `brace`, or None when it is no function."""
    i = brace - 1
    while True:
        while i >= 0 and text[i].isspace():
            i -= 1
        if i < 0 or text[i] != ")":
            return None
        opening = match_back(text, i)
        words = IDENTIFIER.findall(text[max(0, opening - 80):opening].split(";")[-1].split("}")[-1])
        before = text[:opening].rstrip()
        if not words or not before or not (before[-1].isalnum() or before[-1] == "_"):
            return None
        if words[-1] == "__attribute__":
            i = opening - 1 - (len(text[:opening]) - len(before)) - len("__attribute__")
            continue
        return None if words[-1] in NOT_A_NAME else words[-1]


def functions(text):
    """Yields (name, first line, last line, body) of every function of a stripped source."""
    depth, name, start = 0, None, 0
    for i, c in enumerate(text):
        if c == "{":
            if depth == 0:
                name, start = function_name(text, i), i
            depth += 1
        elif c == "}":
            depth = max(0, depth - 1)
            if depth == 0 and name:
                opening = match_back(text, text.rfind(")", 0, start))
                first = text.count("\n", 0, opening) + 1
                yield name, first, text.count("\n", 0, i) + 1, text[start:i + 1]
                name = None


BRANCH = re.compile(r"\b(?:if|for|while)\b|&&|\|\||\?")
CASE = re.compile(r"\bcase\b[^:;{}]*:(?:\s*(?:case\b[^:;{}]*|default\s*):)*")


def complexity(body):
    """Decisions plus one; labels that share a body count once."""
    return 1 + len(BRANCH.findall(body)) + len(CASE.findall(body))
