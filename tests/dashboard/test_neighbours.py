"""What pages say of jobs that share a device."""

import pytest


@pytest.mark.parametrize("address", ["/jobs/{job}", "/devices/sim-0"], ids=["job", "device"])
def test_page_says_who_is_slower_beside_whom(neighbours, reader, ada, address):
    page = reader(ada).get(address.format(job=neighbours[0].pk)).content.decode()

    assert "vit-s is 18 % slower beside ner." in page
