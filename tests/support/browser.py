"""Headless Chromium for tests of pages, through its DevTools protocol on a pipe: no driver and no network."""

import json
import os
import shutil
import subprocess
import tempfile

PROGRAM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
MISSING = "no chromium: apt-get install chromium"


class Browser:
    """One page at a time. `problems` has what scripts threw, and what the page tried to load or was refused."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        their_input, self.output = os.pipe()
        self.input, their_output = os.pipe()

        def place_pipes():
            # Chromium reads descriptor 3 and writes descriptor 4. Copies first: either may be one of these two.
            read_end, write_end = os.dup(their_input), os.dup(their_output)
            os.dup2(read_end, 3)
            os.dup2(write_end, 4)

        self.process = subprocess.Popen(
            [PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--no-first-run", "--disable-background-networking", "--disable-component-update",
             f"--user-data-dir={self.folder.name}", "--remote-debugging-pipe", "about:blank"],
            preexec_fn=place_pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(their_input)
        os.close(their_output)
        self.rest, self.number, self.problems, self.requests, self.session = b"", 0, [], [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)
        os.close(self.input)
        os.close(self.output)
        self.folder.cleanup()

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.output, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    def receive(self):
        while b"\0" not in self.rest:
            part = os.read(self.input, 1 << 20)
            assert part, "Chromium ended"
            self.rest += part
        text, self.rest = self.rest.split(b"\0", 1)
        message = json.loads(text)
        self.note(message.get("method"), message.get("params", {}))
        return message

    def note(self, method, event):
        if method == "Runtime.exceptionThrown":
            self.problems.append(event["exceptionDetails"].get("exception", {}).get("description") or str(event))
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.problems.append(event["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.problems.append("a dialog opened: " + event["message"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])

    def open(self, file, width=1280, height=900, theme="light", scale=1):
        """Loads the page and waits until its scripts have drawn it."""
        self.problems, self.requests = [], []
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.call("Page.navigate", url=f"file://{file}")
        while self.receive().get("method") != "Page.loadEventFired":
            pass
        self.settle()

    def settle(self):
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))")

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")
