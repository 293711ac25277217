"""A headless Chromium through chromedriver's own HTTP interface, so that the tests need no further package."""

from __future__ import annotations

import base64
import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests


class Browser:
    """One window."""

    def __init__(self, session: str) -> None:
        self.session = session

    def post(self, path: str, **body: Any) -> Any:
        reply = requests.post(f"{self.session}/{path}", json=body, timeout=60).json()["value"]
        if isinstance(reply, dict) and "error" in reply:
            raise RuntimeError(reply["message"])
        return reply

    def open(self, path: Path, fragment: str = "") -> None:
        self.post("url", url="about:blank")
        self.post("url", url=path.as_uri() + fragment)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.post("execute/sync", script=script, args=arguments)

    def until(self, script: str, seconds: float = 20.0) -> Any:
        """Waits until an expression is true and returns it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := self.run(f"return {script}"):
                return value
            time.sleep(0.05)
        raise AssertionError(f"never true: {script}")

    def press(self, keys: str) -> None:
        for key in keys:
            actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
            self.post("actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def texts(self, selector: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)

    def click(self, selector: str, text: str = "") -> None:
        script = """const all = [...document.querySelectorAll(arguments[0])];
            const hit = all.find(e => e.textContent.includes(arguments[1]));
            if (!hit) throw Error("nothing to click: " + arguments); hit.click()"""
        self.run(script, selector, text)

    def screenshot(self, path: Path) -> None:
        data = requests.get(f"{self.session}/screenshot", timeout=60).json()["value"]
        path.write_bytes(base64.b64decode(data))


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """Starts a browser with a profile of its own, and ends it."""
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("needs Chromium and chromedriver (Debian: apt-get install chromium chromium-driver)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield Browser(_session(f"http://127.0.0.1:{port}", binary, profile))
    finally:
        with contextlib.suppress(requests.RequestException):
            requests.get(f"http://127.0.0.1:{port}/shutdown", timeout=10)
        process.terminate()
        process.wait(10)


def _session(url: str, binary: str, profile: Path) -> str:
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-dev-shm-usage",
    ]
    options = {"binary": binary, "args": [*flags, "--window-size=1400,900", f"--user-data-dir={profile}"]}
    body = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}}
    for _ in range(100):
        with contextlib.suppress(requests.ConnectionError):
            reply = requests.post(f"{url}/session", json=body, timeout=60).json()["value"]
            if "sessionId" not in reply:
                pytest.skip(f"Chromium does not start here: {reply.get('message', '')[:200]}")
            return f"{url}/session/{reply['sessionId']}"
        time.sleep(0.1)
    raise AssertionError("chromedriver does not answer")
