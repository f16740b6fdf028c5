"""The page at /: one file. It loads nothing from other servers and may only run its own script."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

from relayout_api.examples import GRAPH

__all__ = ["HEADERS", "HTML"]

_TEMPLATE = files("relayout_api").joinpath("page.html").read_text(encoding="utf-8")
HTML = _TEMPLATE.replace("EXAMPLE_GRAPH", json.dumps(GRAPH, indent=1))


def _allowed(element: str) -> str:
    found = re.search(rf"<{element}>(.*?)</{element}>", HTML, re.DOTALL)
    assert found is not None
    return f"'sha256-{b64encode(sha256(found[1].encode()).digest()).decode()}'"


HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    f"frame-ancestors 'none'; script-src {_allowed('script')}; style-src {_allowed('style')}",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
