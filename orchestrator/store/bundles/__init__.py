"""Uploaded code: archives, scripts and the read-only folders made of them."""
