"""A real browser, driven over the WebDriver protocol with nothing but the standard library.

    with Browser() as browser:
        browser.size(375, 800)
        browser.open(page.as_uri())
        browser.run("return document.title")

Needs Debian's `chromium` and `chromium-driver`, or the same from elsewhere on the PATH.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
MISSING = None if CHROMIUM and DRIVER else "needs chromium and chromedriver: apt-get install chromium chromium-driver"


class Browser:
    """A headless Chromium with a profile of its own."""

    def __init__(self) -> None:
        assert DRIVER is not None
        # It picks a free port and prints it.
        self._driver = subprocess.Popen(
            [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        assert self._driver.stdout is not None
        ports = (re.search(r"successfully on port (\d+)", line) for line in self._driver.stdout)
        port = next(filter(None, ports), None)
        if port is None:
            raise RuntimeError("chromedriver does not start")
        self._base = f"http://127.0.0.1:{port[1]}"
        # Requests to this machine never go through a proxy.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._session = ""

    def __enter__(self) -> Browser:
        try:
            self._wait()
            flags = ["--headless=new", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
            flags += ["--disable-background-networking", "--no-first-run", "--no-proxy-server"]
            if os.geteuid() == 0:
                flags.append("--no-sandbox")  # Chromium's sandbox does not work as root
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": {"binary": CHROMIUM, "args": flags},
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self._session = f"/session/{made['sessionId']}"
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._session:
            self._ask("DELETE", self._session)
        self._driver.terminate()
        self._driver.communicate(timeout=120)

    def _wait(self) -> None:
        while not self._ask("GET", "/status")["ready"]:
            time.sleep(0.05)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"}, method=method)
        with self._opener.open(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def command(self, name: str, **given: Any) -> Any:
        """Runs a DevTools command."""
        return self._ask("POST", f"{self._session}/goog/cdp/execute", {"cmd": name, "params": given})

    def size(self, width: int, height: int = 900) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def scheme(self, name: str) -> None:
        """Sets the color scheme: light or dark."""
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def scripts(self, on: bool) -> None:
        self.command("Emulation.setScriptExecutionDisabled", value=not on)

    def open(self, address: str) -> None:
        self._ask("POST", f"{self._session}/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        return self._ask("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def logged(self) -> list[str]:
        """Console messages since the last call."""
        return [entry["message"] for entry in self._ask("POST", f"{self._session}/se/log", {"type": "browser"})]

    def requested(self) -> list[str]:
        """URLs requested since the last call."""
        entries = self._ask("POST", f"{self._session}/se/log", {"type": "performance"})
        events = [json.loads(entry["message"])["message"] for entry in entries]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def screenshot(self, path: Path, *, whole: bool = True) -> bytes:
        """Of the whole page, or of the visible part."""
        given: dict[str, Any] = {"format": "png"}
        if whole:
            given["captureBeyondViewport"] = True
        image = base64.b64decode(self.command("Page.captureScreenshot", **given)["data"])
        path.write_bytes(image)
        return image
