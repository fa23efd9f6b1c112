"""What pages show: rows, tiles, lanes and tables, each from the facts to the words."""
