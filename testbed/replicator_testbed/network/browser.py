"""A real browser without a window: Debian's chromium, which `make setup` installs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

_SIZE: Final = "1280,900"


def missing() -> str | None:
    """What this machine lacks; None if it has all."""
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {' and no '.join(lacking)}: install chromium and chromium-driver" if lacking else None


@contextmanager
def browsing(profile: Path, *, has_javascript: bool = True) -> Iterator[webdriver.Chrome]:
    """A browser with a profile of its own, until the block ends."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={profile}")
    options.add_argument(f"--window-size={_SIZE}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    if not has_javascript:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver") or "chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()
