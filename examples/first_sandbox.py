#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A first sandbox, start to end, with Python's standard library only.

    export SPACE_API_URL=http://127.0.0.1:7070 SPACE_DATA_URL=http://127.0.0.1:7072 SPACE_TOKEN=spm_...
    python3 first_sandbox.py run [--template seed:latest] [--run-dir DIR] [--delete|--keep] -- echo hello
    python3 first_sandbox.py resume --run-dir DIR      # after a crash: the same keys, so nothing is made twice
    python3 first_sandbox.py inspect --run-dir DIR

What it shows, in order: create a sandbox (accepted), wait for the operation (done), check readiness, create a session, follow
its event stream, judge success by the whole rule, delete. Ids, requests, idempotency keys and events are kept in a
private run directory; tokens never are. Proxy variables are ignored, redirects refused, and the attachment token goes to the
configured data plane origin and the exact session path only.
"""

import argparse
import base64
import http.client
import json
import os
import re
import stat
import sys
import tempfile
import time
import urllib.parse
import uuid

MAX_ANSWER = 4 << 20
MAX_LINE = 1 << 20
RETRY_STATUS = (429, 502, 503, 504)
ID = {"sandbox": r"sbx_[0-9a-z]{26}", "operation": r"op_[0-9a-z]{26}", "session": r"ses_[0-9a-z]{26}"}


class ClientError(Exception):
    """Something that ends the run; the text says what to do."""


class Refused(ClientError):
    """The server said no, with a problem+json."""

    def __init__(self, status, problem):
        self.status, self.problem = status, problem
        field = " (%s)" % problem["field"] if problem.get("field") else ""
        super().__init__("%s: %s%s" % (problem.get("code", status), problem.get("detail", "no reason given"), field))


class Origin:
    """scheme://host:port, compared exactly. Only http and https, no user, no path."""

    def __init__(self, url, name):
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
            raise ClientError("%s must be http://host:port or https://host:port" % name)
        if parts.path not in ("", "/"):
            raise ClientError("%s must have no path" % name)
        self.scheme, self.host = parts.scheme, parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)

    def __eq__(self, other):
        return (self.scheme, self.host, self.port) == (other.scheme, other.host, other.port)

    def connect(self, timeout):
        # http.client looks at no proxy variable and follows no redirect: both are wanted.
        kind = http.client.HTTPSConnection if self.scheme == "https" else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=timeout)


class RunDir:
    """What must survive a crash of this client: one JSON file, replaced whole, and a log of events."""

    def __init__(self, path):
        self.path = path
        os.makedirs(path, mode=0o700, exist_ok=True)
        info = os.stat(path)
        if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
            raise ClientError("run directory %s must be yours and closed to others (chmod 700)" % path)
        self.state = {}
        try:
            with open(os.path.join(path, "state.json"), encoding="utf-8") as f:
                self.state = json.load(f)
        except FileNotFoundError:
            pass
        except ValueError:
            raise ClientError("state.json in %s is damaged" % path) from None

    def save(self, **values):
        self.state.update(values)
        text = json.dumps(self.state, indent=2, sort_keys=True)
        if re.search(r"sp[mai]_[A-Za-z0-9_-]{40}", text):
            raise ClientError("refusing to store a token")
        tmp = os.path.join(self.path, ".state.json.tmp")
        fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.rename(tmp, os.path.join(self.path, "state.json"))

    def key(self, step):
        """The idempotency key of a step: made once, before the first try, and used for every repeat."""
        keys = dict(self.state.get("keys", {}))
        if step not in keys:
            keys[step] = "first-sandbox-" + str(uuid.uuid4())
            self.save(keys=keys)
        return keys[step]

    def event(self, name, event_id, data):
        line = json.dumps({"time": time.time(), "event": name, "id": event_id, "data": data})
        fd = os.open(os.path.join(self.path, "events.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "a", encoding="utf-8") as f:
            f.write(line + "\n")


class Client:
    def __init__(self, api, data, token, timeout=30, attempts=5, pause=0.5):
        self.api, self.data, self.token = Origin(api, "SPACE_API_URL"), Origin(data, "SPACE_DATA_URL"), token
        self.timeout, self.attempts, self.pause = timeout, attempts, pause

    def once(self, method, path, body, key, timeout):
        headers = {"Authorization": "Bearer " + self.token, "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if key:
            headers["Idempotency-Key"] = key
        conn = self.api.connect(timeout)
        try:
            conn.request(method, path, None if body is None else json.dumps(body), headers)
            answer = conn.getresponse()
            text = answer.read(MAX_ANSWER + 1)
        finally:
            conn.close()
        if 300 <= answer.status < 400:
            raise ClientError("the API answered with a redirect; redirects are refused")
        if len(text) > MAX_ANSWER:
            raise ClientError("the API's answer is over %d bytes" % MAX_ANSWER)
        try:
            value = json.loads(text) if text else {}
        except ValueError:
            raise ClientError("the API's answer (%d) is no JSON" % answer.status) from None
        if answer.status >= 400:
            raise Refused(answer.status, value if isinstance(value, dict) else {})
        return value

    def call(self, method, path, body=None, key=None, timeout=None):
        """Repeats what may be repeated: reads, and mutations with their key, when the answer was lost or says `later`."""
        for attempt in range(self.attempts):
            last = attempt + 1 == self.attempts
            try:
                return self.once(method, path, body, key, timeout or self.timeout)
            except Refused as e:
                if e.status not in RETRY_STATUS or last:
                    raise
            except (OSError, http.client.HTTPException) as e:
                if last or (method != "GET" and not key):
                    raise ClientError("no answer from the API: %s" % e) from None
            time.sleep(self.pause * 2**attempt)
        raise AssertionError("not reached")

    def wait_operation(self, operation_id, deadline):
        while True:
            op = self.call("GET", "/v1/operations/%s?wait=10" % operation_id, timeout=self.timeout + 10)
            if op["state"] == "succeeded":
                return op
            if op["state"] == "failed":
                raise ClientError("%s failed: %s (%s)" % (op["kind"], op["error"]["message"], op["error"]["code"]))
            if time.monotonic() > deadline:
                raise ClientError("operation %s is still %s; look again with `resume`" % (operation_id, op["state"]))

    def session_path(self, session):
        """The path of the stream, if the URL is where it must be: the attachment token goes nowhere else."""
        url = session["attach_url"]
        parts = urllib.parse.urlsplit(url)
        expected = "/v1/sessions/%s/events" % session["session_id"]
        if Origin("%s://%s" % (parts.scheme, parts.netloc), "attach_url") != self.data:
            raise ClientError("attach_url %s is not at the configured data plane; the token was not sent" % url)
        if parts.path != expected or parts.query or parts.fragment:
            raise ClientError("attach_url has an unexpected path; the token was not sent")
        return expected


def read_events(lines):
    """Yields (event, id, data) of complete frames. Raises EOFError when the stream ends inside one: a cut frame."""
    event, data, event_id, open_frame = "message", [], None, False
    for raw in lines:
        if not raw.endswith(b"\n"):
            raise EOFError("the stream was cut inside a line")
        line = raw.rstrip(b"\r\n").decode("utf-8")
        if line == "":
            if data:
                yield event, event_id, "\n".join(data)
            event, data, open_frame = "message", [], False
            continue
        open_frame = not line.startswith(":") or open_frame
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "event":
            event = value
        elif name == "data":
            data.append(value)
        elif name == "id":
            event_id = value
    if open_frame:
        raise EOFError("the stream was cut inside an event")


class Outcome:
    """The whole rule: exit event with code 0, and no error, gap, resync_required or cut frame."""

    def __init__(self):
        self.exited, self.faults, self.last_id = None, [], None

    @property
    def success(self):
        return self.exited is not None and self.exited.get("exit_code") == 0 and not self.faults


def follow_once(client, session, outcome, run, out, idle_timeout):
    """One connection. Returns True when the stream is over, False when it was cut and may be taken up again."""
    headers = {"Authorization": "Bearer " + session["attachment_token"], "Accept": "text/event-stream"}
    if outcome.last_id:
        headers["Last-Event-ID"] = outcome.last_id
    path = client.session_path(session)
    conn = client.data.connect(idle_timeout)
    try:
        conn.request("GET", path, None, headers)
        answer = conn.getresponse()
        if 300 <= answer.status < 400:
            raise ClientError("the data plane answered with a redirect; redirects are refused")
        if answer.status in RETRY_STATUS:
            return False
        if answer.status != 200 or not (answer.getheader("Content-Type") or "").startswith("text/event-stream"):
            raise ClientError("the data plane refused the session (%d)" % answer.status)
        for event, event_id, text in read_events(iter(lambda: answer.readline(MAX_LINE), b"")):
            data = json.loads(text)
            run.event(event, event_id, data)
            outcome.last_id = event_id or outcome.last_id
            if event in ("stdout", "stderr", "pty"):
                (sys.stderr.buffer if event == "stderr" else out).write(base64.b64decode(data["data"], validate=True))
                out.flush()
            elif event in ("gap", "resync_required", "error"):
                outcome.faults.append("%s: %s" % (event, text))
                if event == "error":
                    return True
            elif event == "process_exited":
                outcome.exited = data
                return True
    except EOFError as e:
        run.event("cut_frame", outcome.last_id, {"reason": str(e)})
    except (OSError, http.client.HTTPException) as e:
        run.event("connection_lost", outcome.last_id, {"reason": str(e)})
    finally:
        conn.close()
    return False


def follow(client, session, run, out, deadline, idle_timeout=45):
    outcome = Outcome()
    while not follow_once(client, session, outcome, run, out, idle_timeout):
        if time.monotonic() > deadline:
            outcome.faults.append("cut: the stream did not come back in time")
            break
        time.sleep(client.pause)
    return outcome


def checked_id(kind, value):
    if not isinstance(value, str) or not re.fullmatch(ID[kind], value):
        raise ClientError("the API sent no valid %s id" % kind)
    return value


def run_all(client, run, template, command, ask_delete, out, create_timeout=180, run_timeout=3600):
    """Every step looks at the run directory first, so that it can be run again after a crash at any line."""
    state = run.state
    if "create_request" not in state:
        run.save(create_request={"template": template}, command=command, step="create")
    created = client.call("POST", "/v1/sandboxes", run.state["create_request"], run.key("create"))
    sandbox_id = checked_id("sandbox", created["sandbox"]["id"])
    run.save(sandbox_id=sandbox_id, operation_id=checked_id("operation", created["operation_id"]), step="accepted")
    client.wait_operation(run.state["operation_id"], time.monotonic() + create_timeout)
    sandbox = client.call("GET", "/v1/sandboxes/" + sandbox_id)
    if sandbox["state"] != "running" or not sandbox["ready"]:
        raise ClientError("the sandbox is %s and %sready" % (sandbox["state"], "" if sandbox["ready"] else "not "))
    run.save(step="ready", template_digest=sandbox["template"]["digest"])
    request = {"command": run.state["command"][0], "args": run.state["command"][1:]}
    session = client.call("POST", "/v1/sandboxes/%s/sessions" % sandbox_id, request, run.key("session"))
    run.save(session_id=checked_id("session", session["session_id"]), session_request=request, step="session")
    outcome = follow(client, session, run, out, time.monotonic() + run_timeout)
    run.save(step="followed", success=outcome.success, exited=outcome.exited, faults=outcome.faults)
    if ask_delete(sandbox_id):
        delete(client, run, sandbox_id)
    return outcome


def delete(client, run, sandbox_id, timeout=60):
    answer = client.call("DELETE", "/v1/sandboxes/" + sandbox_id, key=run.key("delete"))
    run.save(delete_operation_id=checked_id("operation", answer["operation_id"]), step="deleting")
    client.wait_operation(answer["operation_id"], time.monotonic() + timeout)
    run.save(step="deleted")


def ask(sandbox_id):
    if not sys.stdin.isatty():
        print("kept %s (no terminal to ask; use --delete)" % sandbox_id, file=sys.stderr)
        return False
    print("delete sandbox %s? [Y/n] " % sandbox_id, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


def parse(argv):
    p = argparse.ArgumentParser(description="A first sandbox, start to end.")
    sub = p.add_subparsers(dest="mode", required=True)
    r = sub.add_parser("run", help="create, run one command, delete")
    r.add_argument("--template", default="seed:latest")
    r.add_argument("--run-dir")
    r.add_argument("command", nargs="+")
    s = sub.add_parser("resume", help="go on with an interrupted run")
    i = sub.add_parser("inspect", help="show what a run has left")
    for q in (s, i):
        q.add_argument("--run-dir", required=True)
    for q in (r, s):
        g = q.add_mutually_exclusive_group()
        g.add_argument("--delete", action="store_true", help="delete without asking")
        g.add_argument("--keep", action="store_true", help="keep without asking")
    return p.parse_args(argv)


def environment():
    missing = [n for n in ("SPACE_API_URL", "SPACE_DATA_URL", "SPACE_TOKEN") if not os.environ.get(n)]
    if missing:
        raise ClientError("set " + ", ".join(missing))
    return Client(os.environ["SPACE_API_URL"], os.environ["SPACE_DATA_URL"], os.environ["SPACE_TOKEN"])


def inspect(run, client):
    shown = dict(run.state)
    if client and "sandbox_id" in shown:
        try:
            shown["sandbox_now"] = client.call("GET", "/v1/sandboxes/" + shown["sandbox_id"])["state"]
        except ClientError as e:
            shown["sandbox_now"] = "unknown: %s" % e
    print(json.dumps(shown, indent=2, sort_keys=True))


def main(argv=None):
    args = parse(argv)
    try:
        run = RunDir(args.run_dir or tempfile.mkdtemp(prefix="first-sandbox-"))
        if args.mode == "inspect":
            inspect(run, environment() if os.environ.get("SPACE_TOKEN") else None)
            return 0
        client = environment()
        if args.mode == "resume" and "create_request" not in run.state:
            raise ClientError("%s holds no run to resume" % run.path)
        if args.mode == "run" and "create_request" in run.state:
            raise ClientError("%s holds a run already; use resume" % run.path)
        print("run directory: %s" % run.path, file=sys.stderr)
        decide = (lambda _: True) if args.delete else (lambda _: False) if args.keep else ask
        outcome = run_all(client, run, getattr(args, "template", None), getattr(args, "command", None), decide,
                          sys.stdout.buffer)
    except ClientError as e:
        print("first_sandbox: %s" % e, file=sys.stderr)
        return 70
    for fault in outcome.faults:
        print("first_sandbox: %s" % fault, file=sys.stderr)
    if outcome.success:
        return 0
    code = (outcome.exited or {}).get("exit_code")
    return code if code else 70


if __name__ == "__main__":
    sys.exit(main())
