"""Start and watch Berth's own processes."""
