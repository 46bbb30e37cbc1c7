#!/usr/bin/env python3
"""Checks the metrics of a daemon with the tools that operators use.

Usage: check.py SLUICE TOOLS

TOOLS is the folder of `prometheus` and `promtool`. promtool checks the text. A Prometheus scrapes the daemon over TCP and
answers queries. The alert rules and the dashboard in contrib may use only metrics that the reference has.
"""
import contextlib
import json
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 60

CONFIG = """
[daemon]
api = "api.sock"
state = "state"
sockets = "drives"

[metrics]
latency = true
listen = "127.0.0.1:{port}"

[[drive]]
name = "demo"
[[drive.namespace]]
target = "memory"
size = "16MiB"

[[drive]]
name = "copied"
[[drive.namespace]]
target = "memory"
size = "16MiB"
functions = [ {{ kind = "uif", function = "mirror", place = "daemon", layers = [
  {{ target = "memory", size = "16MiB" }}, {{ target = "memory", size = "4MiB" }} ] }} ]
"""

SCRAPE = """
global:
  scrape_interval: 1s
rule_files: ["{rules}"]
scrape_configs:
  - job_name: sluice
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""

QUERIES = {
    'up{job="sluice"}': 1,
    'sluice_drive_open{drive="demo"}': 1,
    'sluice_drive_command_duration_seconds_count{drive="demo",operation="read"}': 0,
    'count(sluice_drive_command_duration_seconds_bucket{drive="demo",operation="read"})': 26,
    'count(sluice_reactor_busy_seconds_total)': 1,
}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def process(command, log):
    """A process that is ended, and whose log is printed after a failure."""
    with open(log, "w") as out:
        running = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield running
    except BaseException:
        print(log.read_text()[-4000:], file=sys.stderr)
        raise
    finally:
        running.terminate()
        try:
            running.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            running.kill()


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def await_value(what, read):
    """The first value of `read` that is not None."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            found = read()
            if found is not None:
                return found
        time.sleep(0.2)
    raise SystemExit("%s: nothing after %d s" % (what, LIMIT_S))


def query(port, expression):
    """The value of an expression, if it has exactly one."""
    text = get("http://127.0.0.1:%d/api/v1/query?query=%s" % (port, urllib.parse.quote(expression)))
    result = json.loads(text)["data"]["result"]
    return float(result[0]["value"][1]) if len(result) == 1 else None


def promtool(tools, *words, text=None):
    done = subprocess.run([tools / "promtool", *words], input=text, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode != 0 or "error" in done.stderr.lower():
        raise SystemExit("promtool %s:\n%s%s" % (" ".join(map(str, words)), done.stdout, done.stderr))


def referenced(expression):
    """The names of metrics of the daemon in an expression, without the suffixes of a histogram."""
    names = re.findall(r"\bsluice_\w+", expression)
    return {re.sub(r"(?<=_seconds)_(bucket|sum|count)$", "", name) for name in names}


def expressions(value):
    """All expressions of a dashboard."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key in ("expr", "query", "definition") and isinstance(part, str):
                yield part
            else:
                yield from expressions(part)
    elif isinstance(value, list):
        for part in value:
            yield from expressions(part)


def check_contrib():
    page, functions = ((ROOT / "docs" / "reference" / name).read_text() for name in ("metrics.md", "functions.md"))
    known = set(re.findall(r"^\| `(sluice_\w+)`", page, re.M))
    known |= {"sluice_function_" + name for name in re.findall(r"`(\w+)`", functions)}
    rules = (ROOT / "contrib" / "prometheus-alerts.yaml").read_text()
    dashboard = list(expressions(json.loads((ROOT / "contrib" / "grafana-dashboard.json").read_text())))
    for name, text in (("prometheus-alerts.yaml", rules), ("grafana-dashboard.json", "\n".join(dashboard))):
        used = referenced(text)
        if not used or used - known:
            raise SystemExit("contrib/%s uses metrics that docs/reference/metrics.md lacks: %s" % (name, used - known))


def check_text(sluice, tools, folder, port):
    text = await_value("/metrics", lambda: get("http://127.0.0.1:%d/metrics" % port))
    promtool(tools, "check", "metrics", text=text)


def check_scrape(tools, folder, port):
    rules, own = ROOT / "contrib" / "prometheus-alerts.yaml", free_port()
    (folder / "prometheus.yml").write_text(SCRAPE.format(rules=rules, port=port))
    promtool(tools, "check", "config", folder / "prometheus.yml")
    command = [tools / "prometheus", "--config.file", folder / "prometheus.yml", "--storage.tsdb.path", folder / "tsdb",
               "--web.listen-address", "127.0.0.1:%d" % own]
    with process(command, folder / "prometheus.log"):
        for expression, expected in QUERIES.items():
            found = await_value(expression, lambda: query(own, expression))
            if found != expected:
                raise SystemExit("%s is %s, not %s" % (expression, found, expected))


def main():
    sluice, tools = sys.argv[1], pathlib.Path(sys.argv[2])
    check_contrib()
    promtool(tools, "check", "rules", ROOT / "contrib" / "prometheus-alerts.yaml")
    with tempfile.TemporaryDirectory() as folder:
        folder, port = pathlib.Path(folder), free_port()
        (folder / "sluice.toml").write_text(CONFIG.format(port=port))
        with process([sluice, "serve", "-c", folder / "sluice.toml"], folder / "log"):
            check_text(sluice, tools, folder, port)
            check_scrape(tools, folder, port)
    print("4 passed, 0 failed")


if __name__ == "__main__":
    main()
