"""Gradients and optimizer state split over the ranks: ZeRO stage 2 by torch's ``fully_shard``."""

from training.strategies.fsdp import Fsdp


class Zero2(Fsdp):
    """Parameters are gathered once a micro-batch and stay until its backward pass has used them."""

    keeps_gathered = True
