"""A headless Chromium in a root of its own, driven by the DevTools protocol over a pipe."""
import base64
import contextlib
import json
import os
import select
import subprocess
import time

LIMIT_S = 15

PROGRAM = "/usr/lib/chromium/chromium-headless-shell"

# The root is mounted in namespaces that end with the browser. The page of the daemon is on the loopback of the machine.
INSIDE = (
    'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/tmp" && exec chroot "$0" "$@"'
)

KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowDown": 40}


class BrowserError(Exception):
    """The browser reported an error, or did not do a thing in time."""


class Browser:
    """A browser process. Each page is a `Page`."""

    def __init__(self, root, log, rules=""):
        (ours_in, theirs_out), (theirs_in, ours_out) = os.pipe(), os.pipe()
        words = [PROGRAM, "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--user-data-dir=/tmp/profile",
                 "--no-first-run", "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
                 "--host-resolver-rules=" + rules, "about:blank"]
        command = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child",
                   "bash", "-c", INSIDE, root] + words
        self.log = log
        with open(log, "w") as out:
            # The browser reads from descriptor 3 and writes to 4.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, close_fds=False,
                env={"HOME": "/tmp", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
                preexec_fn=lambda: (os.dup2(theirs_in, 103), os.dup2(theirs_out, 104), os.dup2(103, 3), os.dup2(104, 4),
                                    os.closerange(5, 200)))
        os.close(theirs_in), os.close(theirs_out)
        self.reader, self.writer, self.text, self.number, self.sessions = ours_in, ours_out, b"", 0, {}

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.reader), os.close(self.writer)

    def call(self, method, session=None, **parameters):
        """Sends a command, and returns its result."""
        self.number += 1
        number = self.number
        message = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + LIMIT_S
        while True:
            found = self.read(deadline - time.monotonic())
            if found is None:
                raise BrowserError("%s: no reply in %d s" % (method, LIMIT_S))
            if found.get("id") == number:
                if "error" in found:
                    raise BrowserError("%s: %s" % (method, found["error"]["message"]))
                return found["result"]
            self.note(found)

    def read(self, limit_s):
        """Returns the next message, or None after the time limit."""
        deadline = time.monotonic() + max(0, limit_s)
        while b"\0" not in self.text:
            if not select.select([self.reader], [], [], max(0, deadline - time.monotonic()))[0]:
                return None
            part = os.read(self.reader, 1 << 16)
            if not part:
                raise BrowserError("the browser has ended:\n" + open(self.log).read()[-2000:])
            self.text += part
        message, self.text = self.text.split(b"\0", 1)
        return json.loads(message)

    def note(self, message):
        page = self.sessions.get(message.get("sessionId"))
        if page is not None and "method" in message:
            page.note(message["method"], message["params"])

    def page(self, width=1280, scheme="light"):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.sessions[session] = Page(self, target, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(domain + ".enable")
        page.shape(width, scheme)
        return page


class Page:
    """A tab. Its errors and violations of the page's rules are in `problems`."""

    def __init__(self, browser, target, session):
        self.browser, self.target, self.session, self.problems = browser, target, session, []

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def note(self, method, data):
        if method == "Runtime.exceptionThrown":
            detail = data["exceptionDetails"]
            self.problems.append(detail.get("exception", {}).get("description") or detail["text"])
        elif method == "Log.entryAdded" and data["entry"]["level"] in ("error", "warning"):
            self.problems.append("%(source)s: %(text)s" % data["entry"])
        elif method == "Runtime.consoleAPICalled" and data["type"] in ("error", "warning", "assert"):
            self.problems.append("console: %s" % data["args"])

    def shape(self, width, scheme="light"):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
        self.browser.sessions.pop(self.session)

    def open(self, url):
        return self.call("Page.navigate", url=url)

    def run(self, script):
        """Evaluates an expression, whose promise is awaited, and returns its value."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise BrowserError("%s: %s" % (script, found["exceptionDetails"].get("exception", {}).get("description")))
        return found["result"].get("value")

    def wait(self, what, script, limit_s=LIMIT_S):
        """Waits until an expression is true, and returns its value."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            # The page may be between two documents.
            with contextlib.suppress(BrowserError):
                found = self.run(script)
                if found:
                    return found
            time.sleep(0.05)
        raise BrowserError("%s: not after %d s; the page has:\n%s" % (what, limit_s, self.run("document.body.innerText")[:2000]))

    def wait_text(self, text, selector="body"):
        return self.wait("the text %r" % text, "[...document.querySelectorAll(%s)].some(node => node.innerText.includes(%s))"
                         % (json.dumps(selector), json.dumps(text)))

    def text(self, selector):
        return self.run("document.querySelector(%s)?.innerText ?? null" % json.dumps(selector))

    def click(self, text, selector="button, a"):
        """Clicks the visible control with this text by the mouse, where it is."""
        box = self.wait("a control %r" % text, """(() => {
            const found = [...document.querySelectorAll(%s)].filter(node => node.innerText.trim() === %s && node.getClientRects().length);
            if (!found[0]) return null;
            found[0].scrollIntoView({ block: "center" });
            const { x, y, width, height } = found[0].getBoundingClientRect();
            return { x: x + width / 2, y: y + height / 2 };
        })()""" % (json.dumps(selector), json.dumps(text)))
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **box)

    def fill(self, label, text):
        """Sets the field with this label, as if it was typed."""
        self.wait("a field %r" % label, """(() => {
            const label = [...document.querySelectorAll("label")].find(node => node.innerText.trim() === %s && node.getClientRects().length);
            const input = label && document.getElementById(label.htmlFor);
            input?.focus();
            input?.select?.();
            return input === document.activeElement && Boolean(input);
        })()""" % json.dumps(label))
        self.call("Input.insertText", text=text)

    def choose(self, label, value):
        self.run("""(() => {
            const label = [...document.querySelectorAll("label")].find(node => node.innerText.trim() === %s);
            const input = document.getElementById(label.htmlFor);
            input.value = %s;
            input.dispatchEvent(new Event("change", { bubbles: true }));
        })()""" % (json.dumps(label), json.dumps(value)))

    def press(self, key, shift=False):
        code = KEYS.get(key) or ord(key.upper())
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        about = dict(key=key, code=key if len(key) > 1 else "", windowsVirtualKeyCode=code, modifiers=8 if shift else 0)
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text):
        for letter in text:
            self.press(letter)

    def screenshot(self, path):
        height = self.run("Math.ceil(document.documentElement.getBoundingClientRect().height)")
        width = self.run("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": max(200, min(height, 6000)), "scale": 1}
        image = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(image["data"]))
