"""Sessions: jobs that people work in through a browser, and the proxy that leads there."""
