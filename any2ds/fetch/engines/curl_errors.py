"""Translates libcurl's errors into failures of a row."""

from __future__ import annotations

import errno
import re

import pycurl

from any2ds.core.errors import redacted
from any2ds.core.failures import Failure
from any2ds.core.processes import open_files
from any2ds.fetch.engines.transport import WITHOUT_FILES

# Errors of a connection that was used before, before the first byte of an answer. The first two are the end of an
# earlier answer in place of this one.
NOT_HTTP = frozenset({1, 8})  # CURLE_UNSUPPORTED_PROTOCOL, CURLE_WEIRD_SERVER_REPLY
NO_ANSWER = NOT_HTTP | {pycurl.E_GOT_NOTHING, pycurl.E_SEND_ERROR, pycurl.E_RECV_ERROR}
BODY_ERRORS = frozenset({pycurl.E_WRITE_ERROR, 61})  # 61: bad encoding; of a redirect the body does not matter

_NO_ROUTE = frozenset({errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL})
# In the message of a handshake that failed: it was cut, not refused.
_BROKE_OFF = re.compile("Recv failure|Send failure|unexpected eof|SSL_ERROR_SYSCALL")

_CODES = {
    pycurl.E_UNSUPPORTED_PROTOCOL: "unsupported_scheme",
    pycurl.E_URL_MALFORMAT: "bad_url",
    pycurl.E_COULDNT_RESOLVE_PROXY: "dns",
    pycurl.E_COULDNT_RESOLVE_HOST: "dns",
    pycurl.E_COULDNT_CONNECT: "connect",
    8: "protocol",  # CURLE_WEIRD_SERVER_REPLY
    9: "access_denied",  # CURLE_REMOTE_ACCESS_DENIED
    16: "reset",  # CURLE_HTTP2
    pycurl.E_PARTIAL_FILE: "truncated",
    19: "not_found",  # CURLE_FTP_COULDNT_RETR_FILE
    pycurl.E_OPERATION_TIMEDOUT: "timeout_connect",
    pycurl.E_SSL_CONNECT_ERROR: "tls",
    pycurl.E_TOO_MANY_REDIRECTS: "too_many_redirects",
    pycurl.E_GOT_NOTHING: "reset",
    pycurl.E_SEND_ERROR: "reset",
    pycurl.E_RECV_ERROR: "reset",
    58: "tls",  # CURLE_SSL_CERTPROBLEM
    59: "tls",  # CURLE_SSL_CIPHER
    60: "tls",  # CURLE_PEER_FAILED_VERIFICATION
    61: "bad_encoding",  # CURLE_BAD_CONTENT_ENCODING: of a Transfer-Encoding
    63: "too_large",  # CURLE_FILESIZE_EXCEEDED
    66: "tls",  # CURLE_SSL_ENGINE_INITFAILED
    67: "access_denied",  # CURLE_LOGIN_DENIED
    77: "tls",  # CURLE_SSL_CACERT_BADFILE
    78: "not_found",  # CURLE_REMOTE_FILE_NOT_FOUND
    83: "tls",  # CURLE_SSL_ISSUER_ERROR
    91: "tls",  # CURLE_SSL_INVALIDCERTSTATUS
    92: "reset",  # CURLE_HTTP2_STREAM
    97: "connect",  # CURLE_PROXY: what a SOCKS proxy refuses
    100: "headers_too_large",  # CURLE_TOO_LARGE
}


def failure_of(
    error: tuple[int, str], status: int | None, final_url: str | None, os_errno: int, scheme: str
) -> Failure:
    """The failure of a request to a URL of this scheme that libcurl gave up with an error's number and message."""
    number, message = error
    if open_files.are_exhausted():  # libcurl does not say that this is why
        return WITHOUT_FILES
    message = redacted(message.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    code = _CODES.get(number, "fetch_error")
    if code == "unsupported_scheme" and scheme in ("http", "https"):
        code = "protocol"  # the answer does not begin as HTTP does
    elif code == "reset" and "chunk" in message.lower():
        code = "protocol"  # libcurl reports malformed chunks as a failure to receive
    elif code == "reset" and ("response headers" in message or "CONTINUATION" in message):
        code = "headers_too_large"  # so it does with headers that are too much together; the latter in HTTP/2
    elif code == "bad_url" and final_url is not None:
        code = "bad_redirect"  # libcurl takes fewer host names than the URL standard
    elif number == pycurl.E_SSL_CONNECT_ERROR and _BROKE_OFF.search(message):
        code = "reset"  # a host that is overloaded, most often: not the certificate
    elif code == "fetch_error":
        message = f"libcurl error {number}: {message}"
    is_our_network = code == "connect" and os_errno in _NO_ROUTE
    return Failure("fetch", code, message, status, final_url, blame="us" if is_our_network else None)
