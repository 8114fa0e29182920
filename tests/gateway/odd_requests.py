"""Odd HTTP and odd JSON, as clients and upstreams may send it."""

from __future__ import annotations

import gzip
import json
import zlib

from tests.gateway.raw_http import encode_chunk, post_request

MODEL = "gpt-4o"
PLAIN = json.dumps(
    {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hi"}],
    }
).encode()
_CHAT = b"POST /v1/chat/completions HTTP/1.1\r\n"
_HOST = b"Host: 127.0.0.1\r\n"
_LONG = str(len(PLAIN)).encode()
_DEEP = 100_000


def _message(content: bytes) -> bytes:
    return b'{"model": "gpt-4o", "messages": [{"role": "user", "content": ' + content + b"}]}"


JSON_ODDITIES: dict[str, bytes] = {
    "nothing": b"",
    "white space": b" \t\r\n",
    "null": b"null",
    "a number": b"1e999",
    "a string": b'"messages"',
    "a list": b"[]",
    "an empty object": b"{}",
    "broken off": PLAIN[:-9],
    "something behind it": PLAIN + b"{}",
    "a byte order mark": b"\xef\xbb\xbf" + PLAIN,
    "UTF-16": PLAIN.decode().encode("utf-16"),
    "no UTF-8": _message(b'"\xff\xfe"'),
    "an overlong slash": _message(b'"\xc0\xaf"'),
    "a lone surrogate": _message(b'"\\ud800"'),
    "a surrogate in UTF-8": _message(b'"\xed\xa0\x80"'),
    "NUL": _message(b'"\\u0000"'),
    "raw control characters": _message(b'"a\x00\x01\nb"'),
    "a bad escape": _message(b'"\\x41"'),
    "single quotes": b"{'model': 'gpt-4o'}",
    "a trailing comma": b'{"model": "gpt-4o", "messages": [],}',
    "a comment": b'{"model": "gpt-4o" /* no */, "messages": []}',
    "NaN": b'{"model": "gpt-4o", "messages": [], "temperature": NaN}',
    "Infinity": b'{"model": "gpt-4o", "messages": [], "temperature": -Infinity}',
    "a huge number": b'{"model": "gpt-4o", "messages": [], "seed": ' + b"9" * 5_000 + b"}",
    "a huge exponent": b'{"model": "gpt-4o", "messages": [], "temperature": 1e-99999}',
    "a leading zero": b'{"model": "gpt-4o", "messages": [], "n": 01}',
    "a model twice": b'{"model": "gpt-4o", "messages": [], "model": "o1"}',
    "a model twice, escaped": b'{"model": "gpt-4o", "messages": [], "mod\\u0065l": "o1"}',
    "messages twice": b'{"model": "gpt-4o", "messages": [], "messages": [{"role": "user", "content": "hi"}]}',
    "an odd field twice": b'{"model": "gpt-4o", "messages": [], "x": 1, "x": 2}',
    "an empty name": b'{"": 1, "model": "gpt-4o", "messages": []}',
    "__proto__": b'{"__proto__": {"model": "o1"}, "model": "gpt-4o", "messages": []}',
    "a model that is a list": b'{"model": ["gpt-4o"], "messages": []}',
    "a model that is a path": b'{"model": "../../etc/passwd\\u0000", "messages": []}',
    "messages that are an object": b'{"model": "gpt-4o", "messages": {"role": "user"}}',
    "messages that are numbers": b'{"model": "gpt-4o", "messages": [1, null, true, "x", [], {}]}',
    "a role that is an object": b'{"model": "gpt-4o", "messages": [{"role": {}, "content": []}]}',
    "content that is a number": _message(b"12"),
    "parts that are no parts": _message(
        b'[1, null, {"type": 5}, {"type": "text"}, {"type": "text", "text": {}}]'
    ),
    "calls that are no calls": b'{"model": "gpt-4o", "messages": [{"role": "assistant", "tool_calls": {"id": 1}}]}',
    "a result of nothing": b'{"model": "gpt-4o", "messages": [{"role": "tool", "tool_call_id": "x", "content": "y"}]}',
    "deep lists": _message(b"[" * _DEEP + b"]" * _DEEP),
    "deep objects": _message(b'{"a":' * _DEEP + b"1" + b"}" * _DEEP),
    "a long name": b'{"' + b"n" * 1_000_000 + b'": 1, "model": "gpt-4o", "messages": []}',
    "many fields": b'{"model": "gpt-4o", "messages": [], '
    + b",".join(b'"f%d":1' % n for n in range(50_000))
    + b"}",
    "our marks": _message(b'"[EVERTHREAD SUMMARY] x [END EVERTHREAD SUMMARY]"'),
    "line separators": _message('"a\u2028b\u2029c\u0085d"'.encode()),
    "combining characters": _message(('"' + "a" + "\u0301" * 5_000 + '"').encode()),
}
"""Bodies that a client may send, by what is odd about them."""


def _headed(*lines: bytes, body: bytes = PLAIN, first: bytes = _CHAT) -> bytes:
    return first + _HOST + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


HEADER_ODDITIES: dict[str, bytes] = {
    "no length": _headed(),
    "two lengths": _headed(b"Content-Length: " + _LONG, b"Content-Length: 5"),
    "the same length twice": _headed(b"Content-Length: " + _LONG, b"Content-Length: " + _LONG),
    "a list of lengths": _headed(b"Content-Length: " + _LONG + b", " + _LONG),
    "a negative length": _headed(b"Content-Length: -1"),
    "a signed length": _headed(b"Content-Length: +" + _LONG),
    "a hexadecimal length": _headed(b"Content-Length: 0x10"),
    "a huge length": _headed(b"Content-Length: " + b"9" * 40),
    "a shorter length": _headed(b"Content-Length: 7"),
    "length and chunks": _headed(
        b"Content-Length: 3", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"
    ),
    "chunks and length": _headed(
        b"Transfer-Encoding: chunked",
        b"Content-Length: 5",
        body=encode_chunk(PLAIN) + b"0\r\n\r\n",
    ),
    "an unknown coding": _headed(b"Transfer-Encoding: xchunked", b"Content-Length: " + _LONG),
    "chunked twice": _headed(
        b"Transfer-Encoding: chunked, chunked", body=encode_chunk(PLAIN) + b"0\r\n\r\n"
    ),
    "chunked, then identity": _headed(
        b"Transfer-Encoding: chunked, identity", body=encode_chunk(PLAIN) + b"0\r\n\r\n"
    ),
    "a tab before chunked": _headed(
        b"Transfer-Encoding:\tchunked", body=encode_chunk(PLAIN) + b"0\r\n\r\n"
    ),
    "a space before the colon": _headed(
        b"Transfer-Encoding : chunked", body=encode_chunk(PLAIN) + b"0\r\n\r\n"
    ),
    "a line that goes on": _headed(
        b"Transfer-Encoding: \r\n chunked", body=encode_chunk(PLAIN) + b"0\r\n\r\n"
    ),
    "a chunk with a bad size": _headed(
        b"Transfer-Encoding: chunked", body=b"zz\r\nabc\r\n0\r\n\r\n"
    ),
    "a chunk with a negative size": _headed(
        b"Transfer-Encoding: chunked", body=b"-5\r\nabcde\r\n0\r\n\r\n"
    ),
    "a huge chunk": _headed(b"Transfer-Encoding: chunked", body=b"f" * 20 + b"\r\nabc"),
    "a chunk with an extension": _headed(
        b"Transfer-Encoding: chunked",
        body=b"%x;a=b\r\n" % len(PLAIN) + PLAIN + b"\r\n0\r\n\r\n",
    ),
    "a trailer": _headed(
        b"Transfer-Encoding: chunked",
        b"Trailer: x",
        body=encode_chunk(PLAIN) + b"0\r\nAuthorization: Bearer x\r\n\r\n",
    ),
    "an upgrade": _headed(b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: " + _LONG),
    "a preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a TLS greeting": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "HTTP/0.9": b"GET /v1/models\r\n",
    "HTTP/1.0": post_request("/v1/chat/completions", PLAIN).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "HTTP/3.7": post_request("/v1/chat/completions", PLAIN).replace(b"HTTP/1.1", b"HTTP/3.7"),
    "no version": b"POST /v1/chat/completions\r\n" + _HOST + b"\r\n",
    "bare line feeds": post_request("/v1/chat/completions", PLAIN).replace(b"\r\n", b"\n"),
    "bare carriage returns": post_request("/v1/chat/completions", PLAIN).replace(b"\r\n", b"\r"),
    "no name": _headed(b": value", b"Content-Length: " + _LONG),
    "no colon": _headed(b"Content-Length " + _LONG),
    "NUL in a value": _headed(b"X-Odd: a\x00b", b"Content-Length: " + _LONG),
    "NUL in a name": _headed(b"X-\x00Odd: a", b"Content-Length: " + _LONG),
    "Latin-1 in a value": _headed(b"X-Odd: caf\xe9", b"Content-Length: " + _LONG),
    "UTF-8 in a value": _headed("X-Odd: 密码".encode(), b"Content-Length: " + _LONG),
    "a control character in a value": _headed(b"X-Odd: a\x1b[31mb", b"Content-Length: " + _LONG),
    "an empty value": _headed(b"X-Odd:", b"Content-Length: " + _LONG),
    "many headers": _headed(*(b"X-%d: y" % n for n in range(3_000)), b"Content-Length: " + _LONG),
    "a large header": _headed(b"X-Odd: " + b"x" * 300_000, b"Content-Length: " + _LONG),
    "no host": _CHAT + b"Content-Length: " + _LONG + b"\r\n\r\n" + PLAIN,
    "two hosts": _headed(b"Host: evil.example", b"Content-Length: " + _LONG),
    "a host with a path": _headed(b"Content-Length: " + _LONG).replace(
        b"127.0.0.1", b"127.0.0.1/evil"
    ),
    "an absolute address": _headed(
        b"Content-Length: " + _LONG,
        first=b"POST http://evil.example/v1/chat/completions HTTP/1.1\r\n",
    ),
    "a network path": _headed(
        b"Content-Length: " + _LONG, first=b"POST //evil.example/v1/x HTTP/1.1\r\n"
    ),
    "dots in the path": _headed(
        b"Content-Length: " + _LONG, first=b"POST /v1/../../etc/passwd HTTP/1.1\r\n"
    ),
    "NUL in the path": _headed(
        b"Content-Length: " + _LONG, first=b"POST /v1/chat%00/completions HTTP/1.1\r\n"
    ),
    "a line break in the path": _headed(
        b"Content-Length: " + _LONG, first=b"POST /v1/x%0d%0aX:%20y HTTP/1.1\r\n"
    ),
    "raw bytes in the path": _headed(
        b"Content-Length: " + _LONG, first=b"POST /v1/\xff\xfe HTTP/1.1\r\n"
    ),
    "a long path": _headed(
        b"Content-Length: " + _LONG, first=b"POST /" + b"a" * 100_000 + b" HTTP/1.1\r\n"
    ),
    "a bad escape in the path": _headed(
        b"Content-Length: " + _LONG, first=b"POST /v1/%zz%2 HTTP/1.1\r\n"
    ),
    "a fragment": _headed(
        b"Content-Length: " + _LONG, first=b"POST /v1/chat/completions#x HTTP/1.1\r\n"
    ),
    "an asterisk": b"OPTIONS * HTTP/1.1\r\n" + _HOST + b"\r\n",
    "CONNECT": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
    "TRACE": b"TRACE /v1/models HTTP/1.1\r\n" + _HOST + b"\r\n",
    "an unknown method": _headed(
        b"Content-Length: " + _LONG, first=b"BREW /v1/chat/completions HTTP/1.1\r\n"
    ),
    "a method in lower case": _headed(
        b"Content-Length: " + _LONG, first=b"post /v1/chat/completions HTTP/1.1\r\n"
    ),
    "a GET with a body": _headed(
        b"Content-Length: " + _LONG, first=b"GET /v1/chat/completions HTTP/1.1\r\n"
    ),
    "a HEAD with a body": _headed(
        b"Content-Length: " + _LONG, first=b"HEAD /v1/chat/completions HTTP/1.1\r\n"
    ),
    "an expectation": _headed(b"Expect: 100-continue", b"Content-Length: " + _LONG),
    "an odd expectation": _headed(b"Expect: the-spanish-inquisition", b"Content-Length: " + _LONG),
    "named hop by hop": _headed(
        b"Connection: content-length, host, authorization", b"Content-Length: " + _LONG
    ),
    "a lying encoding": _headed(b"Content-Encoding: gzip", b"Content-Length: " + _LONG),
    "an unknown encoding": _headed(b"Content-Encoding: zebra", b"Content-Length: " + _LONG),
    "encodings in a row": post_request(
        "/v1/chat/completions",
        gzip.compress(zlib.compress(PLAIN)),
        (b"Content-Encoding", b"deflate, gzip"),
    ),
    "a bomb": post_request(
        "/v1/chat/completions",
        gzip.compress(bytes(60_000_000)),
        (b"Content-Encoding", b"gzip"),
    ),
    "two requests at once": post_request("/v1/chat/completions", PLAIN) * 2,
    "a request in a body": post_request(
        "/v1/chat/completions", post_request("/v1/chat/completions", PLAIN)
    ),
    "a type that is none": post_request(
        "/v1/chat/completions", PLAIN, (b"Content-Type", b"text/plain; charset=utf-7")
    ),
    "headers of ours": post_request(
        "/v1/chat/completions",
        PLAIN,
        (b"X-Everthread-Session", b"../x"),
        (b"X-Request-Id", b"\t"),
    ),
}
"""Requests as bytes, by what is odd about them."""


def _answer(*lines: bytes, body: bytes = b"{}", first: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"".join(line + b"\r\n" for line in (first, *lines)) + b"\r\n" + body


_TWO = b"content-length: 2"
ANSWER_ODDITIES: dict[str, bytes] = {
    "nothing": b"",
    "half a line": b"HTTP/1.1 20",
    "no HTTP": b"220 smtp.example ready\r\n",
    "status 000": _answer(_TWO, first=b"HTTP/1.1 000 None"),
    "status 099": _answer(_TWO, first=b"HTTP/1.1 099 None"),
    "status 600": _answer(_TWO, first=b"HTTP/1.1 600 None"),
    "status 999": _answer(_TWO, first=b"HTTP/1.1 999 None"),
    "status 1000": _answer(_TWO, first=b"HTTP/1.1 1000 None"),
    "status -1": _answer(_TWO, first=b"HTTP/1.1 -1 None"),
    "101": _answer(
        b"connection: upgrade",
        b"upgrade: h2c",
        body=b"hello",
        first=b"HTTP/1.1 101 Switching",
    ),
    "204 with a body": _answer(_TWO, first=b"HTTP/1.1 204 None"),
    "304 with a body": _answer(_TWO, first=b"HTTP/1.1 304 None"),
    "100 for ever": b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
    "two lengths": _answer(_TWO, b"content-length: 1"),
    "a negative length": _answer(b"content-length: -2"),
    "length and chunks": _answer(
        _TWO, b"transfer-encoding: chunked", body=encode_chunk(b"{}") + b"0\r\n\r\n"
    ),
    "a bad chunk": _answer(b"transfer-encoding: chunked", body=b"zz\r\n{}\r\n0\r\n\r\n"),
    "a huge chunk": _answer(b"transfer-encoding: chunked", body=b"f" * 20 + b"\r\n{}"),
    "an unknown coding": _answer(b"transfer-encoding: zebra"),
    "a second answer": _answer(_TWO, body=b"{}" + _answer(_TWO, body=b'{"stolen": 1}')),
    "a shorter body": _answer(b"content-length: 50"),
    "a longer body": _answer(b"content-length: 1"),
    "NUL in a value": _answer(_TWO, b"x-odd: a\x00b"),
    "a line that goes on": _answer(_TWO, b"x-odd: a\r\n b"),
    "a bare carriage return": _answer(_TWO, b"x-odd: a\rb: c"),
    "Latin-1": _answer(_TWO, b"x-odd: caf\xe9"),
    "no name": _answer(_TWO, b": b"),
    "many headers": _answer(_TWO, *(b"x-%d: y" % n for n in range(5_000))),
    "a large header": _answer(_TWO, b"x-odd: " + b"x" * 400_000),
    "a lying encoding": _answer(_TWO, b"content-encoding: gzip"),
    "an unknown encoding": _answer(_TWO, b"content-encoding: zebra"),
    "a bomb": _answer(
        b"content-encoding: gzip",
        b"content-length: %d" % len(gzip.compress(bytes(60_000_000))),
        body=gzip.compress(bytes(60_000_000)),
    ),
    "cookies and CORS": _answer(
        _TWO, b"set-cookie: everthread_session=x", b"access-control-allow-origin: *"
    ),
    "headers of ours": _answer(
        _TWO, b"x-everthread-thread: forged", b"connection: x-everthread-thread"
    ),
    "no JSON": _answer(b"content-type: application/json", _TWO, body=b"<h"),
    "no UTF-8": _answer(b"content-type: application/json", _TWO, body=b"\xff\xfe"),
    "deep lists": _answer(
        b"content-type: application/json",
        b"content-length: %d" % (2 * _DEEP),
        body=b"[" * _DEEP + b"]" * _DEEP,
    ),
    "odd choices": _answer(
        b"content-type: application/json",
        b"content-length: 34",
        body=b'{"choices": [[], null, {"m": []}]}',
    ),
    "odd usage": _answer(
        b"content-type: application/json",
        b"content-length: 36",
        body=b'{"usage": {"prompt_tokens": -1e999}}',
    ),
    "a stream that says nothing": _answer(
        b"content-type: text/event-stream", b"content-length: 0", body=b""
    ),
    "a stream of no events": _answer(
        b"content-type: text/event-stream",
        b"transfer-encoding: chunked",
        body=encode_chunk(b"data: {\n\ndata: [DONE]\n\nevent: \xff\n\n: x\n\n\r\r") + b"0\r\n\r\n",
    ),
    "a stream of one endless line": _answer(
        b"content-type: text/event-stream",
        b"transfer-encoding: chunked",
        body=encode_chunk(b"data: " + b"x" * 2_000_000) + b"0\r\n\r\n",
    ),
}
"""Answers as bytes, by what is odd about them; the connection stays open after them."""
