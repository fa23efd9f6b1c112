"""What travels compressed, and what goes out as it is."""

import gzip

import brotli
import pytest
from django.http import HttpResponse, StreamingHttpResponse
from django.test import RequestFactory

from orchestrator.api.http.middleware import compressed

PAGE = b"<p>Runs on simulated GPU 0.</p>" * 200


def answer(response, accepted="gzip, deflate, br"):
    request = RequestFactory().get("/", headers={"Accept-Encoding": accepted})
    return compressed(lambda _: response)(request)


def test_a_page_travels_in_brotli():
    sent = answer(HttpResponse(PAGE))

    assert sent["Content-Encoding"] == "br"
    assert brotli.decompress(sent.content) == PAGE
    assert int(sent["Content-Length"]) == len(sent.content) < len(PAGE) / 10
    assert "Accept-Encoding" in sent["Vary"]


def test_who_takes_no_brotli_gets_gzip():
    sent = answer(HttpResponse(PAGE, content_type="application/json"), accepted="gzip")

    assert sent["Content-Encoding"] == "gzip"
    assert gzip.decompress(sent.content) == PAGE


@pytest.mark.parametrize(
    ("response", "accepted"),
    [
        (HttpResponse(b"short"), "br"),
        (HttpResponse(PAGE), ""),
        (HttpResponse(PAGE, content_type="application/x-tar"), "br"),
        (StreamingHttpResponse(iter([PAGE]), content_type="text/html"), "br"),
        (HttpResponse(PAGE, headers={"Content-Encoding": "zstd"}), "br"),
    ],
)
def test_what_would_not_gain_goes_out_as_it_is(response, accepted):
    before = response.get("Content-Encoding")

    assert answer(response, accepted).get("Content-Encoding") == before
