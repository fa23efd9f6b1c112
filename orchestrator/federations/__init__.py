"""Federated training: the jobs of sites and of their server, begun together, told of each other, and what comes of them."""
