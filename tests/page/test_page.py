#!/usr/bin/env python3
"""Drives the web page of a daemon in a headless Chromium.

Usage: test_page.py SLUICE ROOT [NAME...]

SLUICE has `sluice-bench` beside it. ROOT is a folder with an unpacked Chromium. Names choose tests. Screenshots of each
view are left in target/page.
"""
import contextlib
import http.server
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from browser import LIMIT_S, Browser, BrowserError

CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
SHOTS = CHECKOUT / "target/page"

# A path that is markup, for a page that takes text for markup.
MARKUP = "<img src=x onerror=document.title='taken'>.img"

CONFIG = """
[daemon]
api = "api.sock"
state = "state"
sockets = "drives"

[metrics]
latency = true

[page]
listen = "127.0.0.1:{port}"

[[shared]]
name = "fast"
type = "memory-pool"
size = "64MiB"

[[drive]]
name = "copied"
[[drive.namespace]]
target = "memory"
size = "16MiB"
functions = [
  {{ kind = "pass" }},
  {{ kind = "uif", function = "mirror", place = "daemon", layers = [
    {{ target = "memory", size = "16MiB" }}, {{ target = "memory", size = "16MiB" }}, {{ target = "memory", size = "4MiB" }} ] }} ]

[[drive]]
name = "missing"
[[drive.namespace]]
target = "file"
path = "none.img"

[[drive]]
name = "odd"
[[drive.namespace]]
target = "file"
path = "{markup}"
size = "1MiB"

[[drive]]
name = "pooled"
[[drive.namespace]]
target = "memory-pool"
shared = "fast"
size = "128MiB"
"""

DECLARED = {"copied", "missing", "odd", "pooled"}

HOSTILE = """<!doctype html><meta charset="utf-8"><title>hostile</title>
<iframe name="frame" src="{page}"></iframe><iframe name="posted"></iframe>
<form id="form" method="post" target="posted" enctype="text/plain" action="{page}v1/drives">
<input name='{{"name":"evil","namespaces":[{{"target":"null","size":"1MiB"}}],"serial":"' value='"}}'></form>
<img id="image" src="{page}page/icon.svg">
<script>
const page = "{page}";
const outcome = async (work) => {{ try {{ return await work(); }} catch (error) {{ return "refused"; }} }};
const spec = JSON.stringify({{ name: "evil", namespaces: [{{ target: "null", size: "1MiB" }}] }});
const read = async (answer) => (answer.type === "opaque" ? "opaque" : answer.text());
const tried = {{
  read: () => fetch(page + "v1/drives").then(read),
  file: () => fetch(page).then(read),
  post: () => fetch(page + "v1/drives", {{ method: "POST", body: spec }}).then(read),
  blind: () => fetch(page + "v1/drives", {{ method: "POST", body: spec, mode: "no-cors" }}).then(read),
  remove: () => fetch(page + "v1/drives/copied?force=true", {{ method: "DELETE" }}).then(read),
  token: () => fetch(page + "v1/drives", {{ headers: {{ Authorization: "Bearer 0" }} }}).then(read),
  script: () => import(page + "page/api.js").then(() => "loaded"),
  frame: async () => frames.frame.document.body.innerText,
  image: async () => (document.getElementById("image").naturalWidth ? "shown" : "refused"),
  opened: async () => {{
    const other = open(page);
    await new Promise((done) => setTimeout(done, 500));
    return other?.document?.title ?? "refused";
  }},
}};
async function attack() {{
  document.getElementById("form").submit();
  const found = {{}};
  for (const [name, work] of Object.entries(tried)) found[name] = await outcome(work);
  await new Promise((done) => setTimeout(done, 500));
  return found;
}}
</script>
"""


class Forward(threading.Thread):
    """A port that leads to the socket of the API, as `ssh -L` makes one."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.listener = str(path), socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                near, far = self.listener.accept()[0], socket.socket(socket.AF_UNIX)
                far.connect(self.path)
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self.copy, args=(one, other), daemon=True).start()

    @staticmethod
    def copy(one, other):
        with contextlib.suppress(OSError):
            while part := one.recv(1 << 16):
                other.sendall(part)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Daemon:
    """A daemon with its page."""

    def __init__(self, sluice, folder):
        self.sluice, self.folder, self.port, self.process = sluice, folder, free_port(), None
        (folder / "sluice.toml").write_text(CONFIG.format(port=self.port, markup=MARKUP))
        self.start()

    def start(self):
        with open(self.folder / "log", "a") as log:
            self.process = subprocess.Popen([self.sluice, "serve", "-c", self.folder / "sluice.toml"], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log)
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                # The page listens before the API does.
                if self.call("version", check=False).returncode == 0:
                    return
            time.sleep(0.05)
        raise SystemExit("the daemon does not listen:\n" + (self.folder / "log").read_text()[-4000:])

    def stop(self):
        self.process.terminate()
        self.process.wait(LIMIT_S)

    def call(self, *words, check=True):
        return subprocess.run([self.sluice, "--api", self.folder / "api.sock", *words], check=check, capture_output=True, text=True,
                              timeout=LIMIT_S)

    def json(self, *words):
        return json.loads(self.call("-o", "json", *words).stdout)

    def names(self):
        return [drive["name"] for drive in self.json("drive", "list")["drives"]]

    def url(self):
        return self.call("page").stdout.strip()

    def origin(self):
        return "http://127.0.0.1:%d/" % self.port

    def socket(self, drive):
        return self.folder / "drives" / drive / "cntrl"

    @contextlib.contextmanager
    def load(self, drive, seconds, mix="70%"):
        """I/O of a host on a drive."""
        words = [pathlib.Path(self.sluice).with_name("sluice-bench"), "--connect", self.socket(drive), "--queue-depth", "8",
                 "--mix", mix, "--time", "1", "--runs", str(seconds), "--overwrite"]
        running = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            yield running
        finally:
            running.terminate()
            running.communicate(timeout=LIMIT_S)


class Test:
    """What a test has: the daemon, the browser, and a page that is opened with the token."""

    def __init__(self, daemon, browser):
        self.daemon, self.browser, self.pages = daemon, browser, []

    def page(self, view="", **shape):
        page = self.browser.page(**shape)
        self.pages.append(page)
        page.open(self.daemon.url())
        page.wait_text("All drives")
        if view:
            go(page, view)
        return page

    def close(self):
        for page in self.pages:
            page.close()
        for name in set(self.daemon.names()) - DECLARED:
            self.daemon.call("drive", "delete", "--force", name)


def go(page, view):
    """Opens a view by its address."""
    page.run("location.hash = %s" % json.dumps("#/" + view))


def expect(what, good):
    if not good:
        raise AssertionError(what)


def no_problems(page):
    expect("the page has errors: %s" % page.problems, not page.problems)


def shoot(page, name):
    """Takes a screenshot at both widths. Nothing may be wider than the window."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    for width in (1280, 360):
        page.shape(width)
        time.sleep(0.2)
        wide = page.run("document.documentElement.scrollWidth")
        page.screenshot(SHOTS / ("%s-%d.png" % (name, width)))
        expect("%s is %d wide in a window of %d" % (name, wide, width), wide <= width)
    page.shape(1280)


def test_flow(test):
    """A drive is made, attached, watched under load, grown and deleted."""
    daemon, page = test.daemon, test.page()
    expect("the token is in the address", page.run("location.href") == daemon.origin() + "#/")
    page.click("Make a drive")
    page.wait_text("Make a drive", "h1")
    shoot(page, "new")
    page.choose("The data is in", "memory")
    page.fill("Name", "copied")
    page.fill("Size", "many")
    page.click("Make the drive")
    error = page.wait("an error at the size", "document.querySelector('[aria-invalid=true]')?.parentNode.querySelector('.error').innerText")
    expect("the error is %r" % error, "many" in error)
    page.fill("Size", "64MiB")
    page.click("Make the drive")
    page.wait("an error at the name", "document.activeElement?.previousSibling?.innerText === 'Name'")
    expect("the error is %r" % page.text(".field .error:not(:empty)"), "copied" in page.text(".field .error:not(:empty)"))
    shoot(page, "new-refused")
    page.fill("Name", "web")
    page.click("Make the drive")
    page.wait_text("Drive web", "h1")
    expect("the drive is not there", "web" in daemon.names())
    words = daemon.call("drive", "attach", "web").stdout.splitlines()[-1]
    expect("the page does not have %r" % words, page.wait_text(words, "pre"))
    with daemon.load("web", 20):
        page.wait_text("connected", "dd")
        page.wait("plots", "[...document.querySelectorAll('.key b')].every(node => /[1-9]/.test(node.innerText))")
        time.sleep(5)
        shoot(page, "drive-load")
        go(page, "")
        page.wait("the load in the list", "[...document.querySelectorAll('tr.x, tbody tr')].some(row => /web[^]*connected[^]*MB.s[^]*s$/.test(row.innerText.trim()))")
        shoot(page, "drives")
        page.click("web")
    page.wait_text("ready", "dd")
    page.fill("New size of namespace 1", "1MiB")
    page.click("Grow")
    page.wait_text("is less than", ".field .error")
    page.fill("New size of namespace 1", "128MiB")
    page.click("Grow")
    page.wait_text("128 MiB", "td")
    expect("it did not grow", daemon.json("drive", "show", "web")["namespaces"][0]["size"] == 128 << 20)
    page.click("Delete the drive")
    page.fill("Type web to delete the drive", "wrong")
    page.click("Delete")
    page.wait_text("the name is web", "dialog .error")
    shoot(page, "delete")
    expect("it is deleted", "web" in daemon.names())
    page.fill("Type web to delete the drive", "web")
    page.click("Delete")
    page.wait_text("Drive web is deleted", "#note")
    expect("it is not deleted", "web" not in daemon.names())
    # The browser notes each refused request as an error.
    page.problems = [problem for problem in page.problems if "status of 4" not in problem]
    no_problems(page)


def test_force(test):
    """A drive that has a client is deleted only when that is chosen."""
    daemon, page = test.daemon, test.page()
    daemon.call("drive", "create", "busy", "--memory", "16MiB")
    with daemon.load("busy", 30):
        go(page, "drive/busy")
        page.wait_text("connected", "dd")
        page.click("Delete the drive")
        page.fill("Type busy to delete the drive", "busy")
        page.click("Delete")
        page.wait("a refusal", "document.querySelector('dialog .error:not(:empty)') !== null")
        expect("it is deleted", "busy" in daemon.names())
        shoot(page, "delete-busy")
        page.click("also while a client uses it, which will lose it", "label")
        page.click("Delete")
        page.wait_text("Drive busy is deleted", "#note")
        expect("it is not deleted", "busy" not in daemon.names())
    page.problems = [problem for problem in page.problems if "status of 4" not in problem]
    no_problems(page)


def test_views(test):
    """Each view shows what there is, in both colour schemes, and takes no text for markup."""
    daemon, page = test.daemon, test.page()
    page.wait_text("1 failed")
    go(page, "drive/missing")
    page.wait_text("none.img", ".error")
    shoot(page, "drive-failed")
    go(page, "drive/odd")
    page.wait_text(MARKUP, "td")
    expect("text is taken for markup", page.run("document.querySelector('main img') === null && !document.title.includes('taken')"))
    go(page, "drive/copied")
    page.wait_text("in sync", "td")
    label = page.run("document.querySelector('.graph').getAttribute('aria-label')")
    expect("the graph is %s" % label, "mirror" in label and label.count("in sync") == 4 and "log" in label)
    shoot(page, "drive")
    go(page, "pools")
    page.wait_text("fast", "th")
    shoot(page, "pools")
    go(page, "reactors")
    page.wait("a load", "/\\d %/.test(document.querySelector('[data-label=Load]')?.innerText)")
    shoot(page, "reactors")
    go(page, "events")
    page.wait_text("drive opened", "td")
    daemon.call("drive", "create", "late", "--null", "1MiB")
    page.wait_text("late", "td")
    page.fill("Show only events with", "late")
    page.wait("one drive's events", "[...document.querySelectorAll('[data-label=Drive]')].every(node => node.innerText === 'late')")
    shoot(page, "events")
    daemon.call("drive", "delete", "late")
    page.wait_text("drive removed", "td")
    no_problems(page)
    for view in ("", "drive/copied"):
        go(page, view)
        page.wait_text("copied", "h1, th")
        time.sleep(2)
        page.shape(1280, "dark")
        page.screenshot(SHOTS / ("dark-%s.png" % (view.replace("/", "-") or "drives")))
        page.shape(360, "dark")
        page.screenshot(SHOTS / ("dark-%s-360.png" % (view.replace("/", "-") or "drives")))
        page.shape(1280)


def test_jobs(test):
    """A job is paused, resumed and cancelled by its buttons."""
    daemon, page = test.daemon, test.page("jobs")
    daemon.call("function", "tell", "copied", "check")
    job = "copied:1:1:check"
    page.wait_text("copied: check", "th")
    daemon.call("function", "tell", "copied", "resync", "all")
    page.wait_text("copied: resync", "th")
    states = lambda: {found["job"]: found["state"] for found in daemon.json("job", "list")["jobs"]}
    listed = daemon.json("job", "list")["jobs"]
    slow = [found for found in listed if found["job"] == "resync"][0]["id"]
    daemon.call("job", "pace", slow, "--mib-s", "1")
    daemon.call("function", "tell", "copied", "resync", "all")
    for button, state in (("Pause", "paused"), ("Resume", "running"), ("Cancel", "cancelled")):
        page.wait("the button", "[...document.querySelectorAll('button')].some(node => node.ariaLabel === '%s resync of copied' && !node.hidden)" % button)
        page.run("[...document.querySelectorAll('button')].find(node => node.ariaLabel === '%s resync of copied').click()" % button)
        page.wait("the job is %s" % state, "[...document.querySelectorAll('tbody tr')].some(row => /copied: resync/.test(row.innerText) && /%s/.test(row.innerText))" % state)
        expect("the daemon has %s" % states(), states()["resync"] == state)
        if state == "running":
            time.sleep(2)
            shoot(page, "jobs")
    page.problems = [problem for problem in page.problems if "status of 4" not in problem]
    no_problems(page)
    daemon.call("job", "pace", slow, "--mib-s", "0")
    daemon.call("job", "resume", slow)


def test_keyboard(test):
    """A drive is made by the keyboard alone, with the focus visible at each step."""
    page = test.page()

    def tab_to(what):
        for _ in range(60):
            page.press("Tab")
            found = page.run("""(() => {
                const node = document.activeElement, style = getComputedStyle(node);
                const label = document.querySelector(`label[for="${node.id}"]`);
                return { text: (label ?? node).innerText.trim(), seen: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 };
            })()""")
            expect("the focus on %r is not visible" % found["text"], found["seen"])
            if found["text"] == what:
                return
        raise AssertionError("no Tab leads to %r" % what)

    page.press("Tab")
    expect("the first Tab does not skip", page.run("document.activeElement.className") == "skip")
    tab_to("Make a drive")
    page.press("Enter")
    page.wait_text("Make a drive", "h1")
    expect("the heading has no focus", page.run("document.activeElement.tagName") == "H1")
    tab_to("Name")
    page.type("typed")
    tab_to("The data is in")
    page.press("ArrowDown")
    page.wait("memory", "document.activeElement.value === 'memory'")
    tab_to("Size")
    page.type("8MiB")
    page.press("Enter")
    page.wait_text("Drive typed", "h1")
    expect("the drive is not there", "typed" in test.daemon.names())
    tab_to("Delete the drive")
    page.press("Enter")
    page.wait("the question", "document.activeElement.closest('dialog') !== null")
    page.press("Escape")
    page.wait("no question", "document.querySelector('dialog') === null")
    expect("the focus is lost", page.run("document.activeElement.innerText") == "Delete the drive")
    page.press("Enter")
    page.wait("the question", "document.activeElement.closest('dialog') !== null")
    page.type("typed")
    page.press("Enter")
    page.wait_text("Drive typed is deleted", "#note")
    expect("the drive is still there", "typed" not in test.daemon.names())
    no_problems(page)


def test_labels(test):
    """Each control has a name, each button is one, and each view one heading of the first level."""
    page = test.page()
    for view in ("", "new", "jobs", "events", "pools", "reactors", "drive/copied"):
        go(page, view)
        page.wait("the view", "document.querySelector('h1') !== null && document.querySelectorAll('main *').length > 3")
        time.sleep(1.2)
        bare = page.run("""[...document.querySelectorAll("button, a, input, select, textarea, progress, meter, [role=img], [tabindex='0']")]
            .filter(node => !(node.ariaLabel || node.innerText?.trim() || node.labels?.length)).map(node => node.outerHTML)""")
        expect("%s: no name: %s" % (view, bare), [item for item in bare if not item.startswith("<pre")] == [])
        expect(view, page.run("document.querySelectorAll('h1').length") == 1)
        expect(view, page.run("document.querySelectorAll('div[onclick], span[onclick]').length") == 0)
    no_problems(page)


def test_wrong_token(test):
    """A wrong token opens nothing; the right one does."""
    page = test.browser.page()
    test.pages.append(page)
    page.open(test.daemon.origin() + "#token=" + "0" * 64)
    page.wait_text("the token is wrong", ".error")
    expect("there are drives", "copied" not in page.run("document.body.innerText"))
    shoot(page, "locked")
    page.fill("Token", "1" * 64)
    page.click("Open the page")
    page.wait_text("the token is wrong", ".field .error")
    page.fill("Token", test.daemon.url())
    page.click("Open the page")
    page.wait_text("All drives")
    other = test.browser.page()
    test.pages.append(other)
    other.open(test.daemon.origin())
    other.wait_text("this needs the token of the page", ".error")


def test_away(test):
    """The page tells that the daemon is away, and comes back by itself."""
    page = test.page()
    test.daemon.stop()
    page.wait_text("The daemon does not answer", "#away")
    shoot(page, "away")
    test.daemon.start()
    page.wait("the daemon is back", "document.querySelector('#away').hidden")
    page.wait_text("All drives")
    go(page, "events")
    page.wait_text("drive opened", "td")
    test.daemon.stop()
    page.wait_text("The daemon does not answer", "#away")
    test.daemon.start()
    page.wait("the events are back", "document.querySelector('#away').hidden")
    page.problems = [problem for problem in page.problems if "ERR_" not in problem]
    no_problems(page)


def test_hostile(test):
    """A page of another origin neither reads nor changes anything, nor does a name of another site that leads here."""
    # The user has the page open in another tab of the same browser.
    own = test.page()
    attack(test, test.daemon.origin(), test.daemon.port)
    own.wait_text("All drives")
    no_problems(own)


def test_hostile_forwarded(test):
    """The same for the socket of the API that is forwarded to a port, where the page needs no token."""
    forward = Forward(test.daemon.folder / "api.sock")
    own = test.browser.page()
    test.pages.append(own)
    own.open("http://localhost:%d/" % forward.port)
    own.wait_text("copied", "th")
    attack(test, "http://localhost:%d/" % forward.port, forward.port)
    no_problems(own)
    forward.listener.close()


def attack(test, origin, port):
    """Lets a page of other origins attack the page at this origin."""
    daemon = test.daemon
    text = HOSTILE.format(page=origin).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for host in ("127.0.0.1", "localhost", "evil.example"):
            before = daemon.names()
            page = test.browser.page()
            test.pages.append(page)
            page.open("http://%s:%d/" % (host, server.server_port))
            page.wait("the hostile page", "typeof attack === 'function'")
            found = page.run("attack()")
            expect("%s: %s" % (host, found), found.pop("blind") in ("opaque", "refused"))
            expect("%s: %s" % (host, found), set(found.values()) == {"refused"})
            expect("%s changed something: %s" % (host, daemon.names()), daemon.names() == before)
    finally:
        server.shutdown()
    rebound = test.browser.page()
    test.pages.append(rebound)
    rebound.open("http://evil.example:%d/" % port)
    rebound.wait_text("is not a name of this daemon")
    log = (daemon.folder / "log").read_text()
    expect("the log has an order for `evil`", "evil" not in log)


TESTS = [test_flow, test_force, test_views, test_jobs, test_keyboard, test_labels, test_hostile, test_hostile_forwarded, test_wrong_token, test_away]


def main():
    sluice, root, chosen = str(pathlib.Path(sys.argv[1]).resolve()), sys.argv[2], sys.argv[3:]
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        daemon = Daemon(sluice, folder)
        browser = Browser(root, folder / "browser.log", "MAP evil.example 127.0.0.1")
        try:
            for run in TESTS:
                name = run.__name__[len("test_"):]
                if chosen and name not in chosen:
                    continue
                test, start = Test(daemon, browser), time.monotonic()
                try:
                    run(test)
                    passed += 1
                    print("  ok    %-12s %5.1f s" % (name, time.monotonic() - start), flush=True)
                except (AssertionError, BrowserError, subprocess.SubprocessError) as error:
                    failed += 1
                    traceback.print_exc()
                    print("  FAIL  %s: %s" % (name, error), flush=True)
                finally:
                    with contextlib.suppress(BrowserError):
                        test.close()
        finally:
            browser.close()
            daemon.stop()
        if failed:
            print((folder / "log").read_text()[-4000:])
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
