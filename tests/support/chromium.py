"""The browser of the page's tests: a Chromium on the path."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright


@contextmanager
def browsing() -> Iterator[Browser]:
    """A browser without windows. The build that has none takes half the time. The test is skipped where neither is."""
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if path is None:
        pytest.skip("there is neither chromium-headless-shell nor chromium on the path")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
