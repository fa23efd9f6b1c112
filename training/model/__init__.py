"""What a model is made of: its blocks, the layers that can be split, its loss and its optimizer."""
