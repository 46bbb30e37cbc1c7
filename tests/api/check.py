#!/usr/bin/env python3
"""Checks the OpenAPI document of the REST API from outside.

Usage: check.py SLUICE

An independent validator reads the document first. A client that knows nothing but the document then requests each of
its operations once from a daemon of its own: the status must be a declared one, and the body must match its schema.
"""
import contextlib
import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time

from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 30
METHODS = ("get", "put", "post", "delete")
JSON = "application/json"

# What values the parameters of a path, and the fields of a body, have here; the document says of which type they are.
NAMES = {"id": "copied:1:1:resync", "name": "demo", "nsid": 1, "number": 1, "map": "started", "volume": "kept", "key": "0" * 16, "value": "0" * 16}

# Bodies whose sense a schema does not say. All others are made out of the schema.
BODIES = {
    ("post", "/v1/drives"): {"name": "made", "namespaces": [{"target": "null", "size": "1MiB"}]},
    ("post", "/v1/drives/{name}/resize"): {"nsid": 1, "size": "2MiB"},
    ("post", "/v1/drives/{name}/functions"): {"nsid": 1, "function": {"function": "pass", "place": "daemon"}},
    ("post", "/v1/drives/{name}/functions/{number}/control"): {"text": "status"},
    ("post", "/v1/drives/{name}/ana"): {"state": "non-optimized"},
    ("post", "/v1/jobs/{id}/pace"): {"mib_s": 1, "priority": "low"},
    ("post", "/v1/diff"): {"file": "/drives.toml", "text": "# no drive\n"},
    ("post", "/v1/apply"): {"file": "/drives.toml", "text": "# no drive\n"},
}

# Drive with a job that does not end in the time of this test: a write to its second copy takes a second.
COPIED = {"name": "copied", "namespaces": [{"target": "memory", "size": "64MiB", "functions": [
    {"kind": "uif", "function": "mirror", "place": "daemon", "layers": [
        {"target": "memory", "size": "64MiB", "functions": [{"kind": "delay", "write_us": 1000000}]},
        {"target": "memory", "size": "4MiB"}]}]}]}

# Drive that leaves its volume behind.
THIN = {"name": "thin", "namespaces": [{"target": "thin", "shared": "demo", "volume": "kept", "size": "1GiB"}]}

# Operations that are refused here, in the declared way: no host has created a namespace, no function is in a process,
# the function takes no orders, the drive has one way only, data in memory is not handed over in an upgrade, a drive without
# functions has no limits, and a null target replaces nothing. A memory target is on no controller that can be reset or upgraded. All others succeed.
REFUSED = {
    ("delete", "/v1/drives/{name}/namespaces/{nsid}"), ("post", "/v1/drives/{name}/functions/restart"),
    ("post", "/v1/drives/{name}/functions/{number}/control"), ("post", "/v1/drives/{name}/ana"),
    ("post", "/v1/upgrade"), ("put", "/v1/drives/{name}/limits"), ("put", "/v1/drives/{name}/targets/{nsid}"),
    ("post", "/v1/drives/{name}/targets/{nsid}/reset"), ("post", "/v1/drives/{name}/targets/{nsid}/firmware"),
}

CONFIG = """
[daemon]
api = "api.sock"
state = "state"
sockets = "drives"

[page]
listen = "127.0.0.1:0"

[[shared]]
name = "demo"
type = "thin"
path = "FOLDER/pool.img"
size = "8MiB"
"""


class Connection(http.client.HTTPConnection):
    """HTTP over a UNIX socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=LIMIT_S)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(self.path)


def ask(api, method, path, body=None):
    """The status, the content type and the body of an answer."""
    with contextlib.closing(Connection(api)) as connection:
        text = None if body is None else json.dumps(body)
        connection.request(method.upper(), path, text, {"Content-Type": JSON} if text else {})
        answer = connection.getresponse()
        kind = (answer.getheader("Content-Type") or "").split(";")[0]
        return answer.status, kind, answer.read()


@contextlib.contextmanager
def daemon(sluice):
    """The socket of a daemon, and a folder for what it is to be given."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "sluice.toml").write_text(CONFIG.replace("FOLDER", str(folder)))
        with open(folder / "log", "w") as log:
            command = [sluice, "serve", "-c", str(folder / "sluice.toml")]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            await_api(folder / "api.sock", process, folder / "log")
            yield folder / "api.sock", folder
        finally:
            process.terminate()
            try:
                process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def await_api(api, process, log):
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            ask(api, "get", "/v1/version")
            return
        time.sleep(0.02)
    sys.exit("the daemon does not answer:\n" + log.read_text())


def compile_classifier(folder):
    """The object file of a classifier that has maps."""
    compiled = folder / "observe.o"
    source = ROOT / "classifiers" / "observe.c"
    flags = ["-target", "bpf", "-O2", "-g", "-mcpu=v3", "-I", str(ROOT / "crates" / "ebpf" / "include"), "-c"]
    subprocess.run(["clang", *flags, str(source), "-o", str(compiled)], check=True, timeout=LIMIT_S)
    return str(compiled)


def resolve(document, schema):
    """A schema without a reference at its top."""
    while "$ref" in schema:
        pointer = schema["$ref"].removeprefix("#/").split("/")
        schema = document
        for step in pointer:
            schema = schema[step]
    return schema


def example(document, schema, name=None):
    """A value that a schema allows, as small as can be."""
    schema = resolve(document, schema)
    if name in NAMES:
        return NAMES[name]
    for several in ("oneOf", "anyOf"):
        if several in schema:
            return example(document, schema[several][0], name)
    if "allOf" in schema:
        parts = [example(document, part) for part in schema["allOf"]]
        return {key: value for part in parts for key, value in part.items()}
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    kinds = schema.get("type", "object")
    kind = kinds if isinstance(kinds, str) else next(kind for kind in kinds if kind != "null")
    if kind == "object":
        properties = schema.get("properties", {})
        return {key: example(document, properties[key], key) for key in schema.get("required", [])}
    return {"string": "x", "integer": 0, "number": 0, "boolean": False, "array": []}[kind]


def path_of(document, path, operation):
    """The path of an operation's request."""
    item = document["paths"][path]
    for parameter in item.get("parameters", []) + operation.get("parameters", []):
        value = example(document, parameter["schema"], parameter["name"])
        if parameter["in"] == "path":
            path = path.replace("{%s}" % parameter["name"], str(value))
    assert not re.search(r"[{}]", path), f"{path} has a parameter that the document does not describe"
    return path


def check_answer(document, operation, answer):
    """What is wrong with an answer, by the word of the document; nothing if it is as declared."""
    status, kind, body = answer
    declared = operation["responses"]
    response = declared.get(str(status), declared.get("default"))
    if response is None:
        return f"the status {status} is not declared"
    content = resolve(document, response).get("content")
    if not content:
        return f"a body of {len(body)} bytes is not declared" if body else None
    if kind not in content:
        return f"the content type {kind} of {status} is not declared"
    if kind != JSON:
        return None
    # References lead into the document.
    schema = {**document, **content[kind]["schema"]}
    errors = list(Draft202012Validator(schema).iter_errors(json.loads(body)))
    return "; ".join(f"{error.json_path}: {error.message}" for error in errors[:3]) or None


def order(entry):
    """Creations first, then looks, and deletions last, the deepest first."""
    path, method = entry
    rank = {"post": 0, "put": 1, "get": 2, "delete": 3}[method]
    return rank, -len(path) if method == "delete" else len(path), path


def drive(document, api):
    """Requests each operation once. Returns how many are as declared, and how many are not."""
    failed = 0
    status, _, body = ask(api, "post", "/v1/drives", {"name": "demo", "namespaces": [{"target": "memory", "size": "1MiB"}]})
    assert status == 201, body
    status, _, body = ask(api, "post", "/v1/drives", COPIED)
    assert status == 201, body
    status, _, body = ask(api, "post", "/v1/drives", THIN)
    assert status == 201, body
    status, _, body = ask(api, "delete", "/v1/drives/thin")
    assert status == 204, body
    deadline = time.monotonic() + LIMIT_S
    while b"resync" not in ask(api, "get", "/v1/jobs")[2] and time.monotonic() < deadline:
        time.sleep(0.02)
    operations = [(path, method) for path, item in document["paths"].items() for method in METHODS if method in item]
    for path, method in sorted(operations, key=order):
        operation = document["paths"][path][method]
        body = None
        if "requestBody" in operation:
            schema = operation["requestBody"]["content"][JSON]["schema"]
            body = BODIES.get((method, path)) or example(document, schema)
        answer = ask(api, method, path_of(document, path, operation), body)
        wrong = check_answer(document, operation, answer)
        if wrong is None and (answer[0] >= 300) != ((method, path) in REFUSED):
            wrong = f"it is {'refused' if answer[0] >= 300 else 'not refused'}: {answer[2].decode()}"
        failed += wrong is not None
        print(f"  {'FAIL' if wrong else 'ok  '} {method} {path}: {answer[0]}{' ' + wrong if wrong else ''}")
    return len(operations) - failed, failed


def main():
    sluice = os.path.abspath(sys.argv[1])
    document = json.loads(subprocess.run([sluice, "openapi"], check=True, capture_output=True, timeout=LIMIT_S).stdout)
    errors = list(OpenAPIV31SpecValidator(document).iter_errors())
    for error in errors[:20]:
        print(f"  FAIL {'/'.join(map(str, error.absolute_path))}: {error.message[:300]}")
    with daemon(sluice) as (api, folder):
        classifier = {"object": compile_classifier(folder)}
        for method in ("post", "put"):
            BODIES[method, "/v1/drives/{name}/classifier"] = classifier
        passed, failed = drive(document, api)
        status, _, served = ask(api, "get", "/openapi.json")
        if status != 200 or json.loads(served) != document:
            print("  FAIL the daemon serves another document than the tool prints")
            errors.append(None)
    failed += bool(errors)
    print(f"{passed + (not errors)} passed, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
