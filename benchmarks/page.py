"""The page in Chromium: seconds to lay out and draw a graph, and milliseconds between frames while panning.

python benchmarks/page.py http://127.0.0.1:8000 model.onnx nhwc
"""

from __future__ import annotations

import shutil
import sys

from playwright.sync_api import sync_playwright

_FRAMES = 120
_PAN = """async count => {
    const canvas = document.querySelector(".view canvas");
    const box = canvas.getBoundingClientRect();
    const send = (type, x, y) => canvas.dispatchEvent(
        new PointerEvent(type, {pointerId: 1, clientX: box.left + x, clientY: box.top + y, bubbles: true}));
    canvas.setPointerCapture = () => {};
    send("pointerdown", 300, 300);
    const frames = [];
    let last = await new Promise(requestAnimationFrame);
    for (let i = 1; i <= count; i++) {
        send("pointermove", 300 + 200 * Math.sin(i / 10), 300 - 2 * i);
        const now = await new Promise(requestAnimationFrame);
        frames.push(now - last);
        last = now;
    }
    send("pointerup", 0, 0);
    return frames.sort((a, b) => a - b);
}"""


def main(address: str, model: str, backend: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(120_000)
        page.goto(address)
        page.wait_for_selector("#backend option", state="attached")
        page.set_input_files("#file", model)
        page.wait_for_selector("#run:not([disabled])")
        page.wait_for_selector(".view[aria-busy=false]")
        page.select_option("#backend", backend)
        page.click("#run")
        page.wait_for_selector("#result:not([hidden])")
        page.wait_for_selector(".view[aria-busy=false]")
        print(page.get_attribute(".view canvas", "aria-label"))
        measures = page.evaluate("performance.getEntriesByType('measure').map(each => [each.name, each.duration])")
        for name, milliseconds in measures:
            print(f"{name}: {milliseconds / 1000:.2f} s")
        page.wait_for_timeout(500)
        for what in ("readable", "whole graph"):
            if what == "whole graph":
                page.click("#fit")
            frames = page.evaluate(_PAN, _FRAMES)
            print(f"frames, {what}: median {frames[_FRAMES // 2]:.1f} ms, 95 % {frames[_FRAMES * 95 // 100]:.1f} ms")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
