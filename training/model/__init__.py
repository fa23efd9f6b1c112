"""What is known about a model: its blocks, the layers that ranks can share, its loss and optimizer."""
