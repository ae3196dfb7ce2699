"""What a team would write for mitmproxy: token patterns and known secrets, in a few
encodings, in all that leaves; phrases of injection in what enters. It buffers each
message, as mitmproxy does unless it is told otherwise."""

import base64
import os
import re
import urllib.parse

from mitmproxy import http

TOKENS = re.compile(
    rb"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,}|glpat-[A-Za-z0-9_-]{20,}"
    rb"|xox[abprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{35}"
    rb"|sk-ant-[A-Za-z0-9_-]{20,}|sk-[A-Za-z0-9]{32,}|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{50,}"
    rb"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
INJECTION = re.compile(
    rb"(?i)ignore (?:all |any )?(?:previous|prior|above) instructions|disregard (?:all |the )?(?:previous|above)"
    rb"|you are now (?:in )?(?:developer|dan) mode|reveal your system prompt"
)


def variants(secret: bytes):
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    yield urllib.parse.quote_from_bytes(secret, safe="").encode()
    yield secret[::-1]
    for shift in range(3):  # the three alignments of base64, without what neighbours change
        text = base64.b64encode(b"\0" * shift + secret)[4 if shift else 0 :].rstrip(b"=")[:-1]
        yield text
        yield text.replace(b"+", b"-").replace(b"/", b"_")


SECRETS = {v for s in os.environb.get(b"BENCH_SECRETS", b"").split() for v in variants(s) if len(v) >= 8}


def leaks(data: bytes) -> bool:
    return bool(TOKENS.search(data)) or any(v in data for v in SECRETS)


def request(flow: http.HTTPFlow) -> None:
    q = flow.request
    head = b"\n".join([q.path.encode()] + [k + b": " + v for k, v in q.headers.fields])
    if leaks(head) or leaks(q.get_content(strict=False) or b""):
        flow.response = http.Response.make(403, b"a secret would leave\n")


def response(flow: http.HTTPFlow) -> None:
    r = flow.response
    if r.headers.get("content-type", "").startswith(("text/", "application/json")):
        if INJECTION.search(r.get_content(strict=False) or b""):
            flow.response = http.Response.make(403, b"an injected instruction would enter\n")
