"""Pages opened in a browser: what it says, shows, and prints."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--enable-logging=stderr", "--v=0",
)  # fmt: skip


NARROWEST = 500  # of a window; narrower pages are shown in a frame


def browser() -> str:
    """Return where a browser is; skip the test, with the reason, where there is none."""
    path = os.environ.get("CASTFIT_BROWSER") or next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(_NAMES)} is there, and CASTFIT_BROWSER names none")
    return path


def opened(page: Path, *options: str, profile: Path) -> tuple[str, list[str]]:
    """Open a page; return what the browser prints, and the lines of its console."""
    process = subprocess.run(
        [browser(), *_OPTIONS, f"--user-data-dir={profile}", *options, page.as_uri()],
        capture_output=True, encoding="utf-8", errors="replace", timeout=120, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return process.stdout, [line for line in process.stderr.splitlines() if "CONSOLE" in line]


def asked(
    page: Path, script: str, *, profile: Path, width: int = 1280, dark: bool = False
) -> tuple[dict[str, str], list[str]]:
    """Run a script in a page, which calls ``say(name, value)``; return what it said, and the lines of the console."""
    markup = (
        "<script>const say = (name, value) => { const p = document.createElement('output'); p.className = 'told';"
        f"p.title = name; p.textContent = String(value); document.body.append(p); }};{script}</script>"
    )
    copy = page.with_name(f"asked-{page.name}")
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{markup}</body>"), encoding="utf-8")
    if width < NARROWEST:
        copy = _framed(copy, width)
    options = (f"--window-size={max(width, NARROWEST)},900", "--allow-file-access-from-files", "--dump-dom")
    options += ("--blink-settings=preferredColorScheme=0",) if dark else ()
    dom, console = opened(copy, *options, profile=profile)
    outputs = re.findall(r'<output class="told" title="([^"]*)">(.*?)</output>', dom, re.DOTALL)
    return {html.unescape(name): html.unescape(value) for name, value in outputs}, console


def _framed(page: Path, width: int) -> Path:
    """Write a page that shows another in a frame, and repeats what was said there."""
    frame = page.with_name(f"frame-{page.name}")
    frame.write_text(
        f"""<body><iframe width="{width}" height="900" style="border:0" src="{page.name}"></iframe><script>
        const frame = document.querySelector("iframe");
        frame.onload = () => frame.contentDocument.querySelectorAll("output.told")
          .forEach((said) => document.body.append(document.importNode(said, true)));
        </script></body>""",
        encoding="utf-8",
    )
    return frame
