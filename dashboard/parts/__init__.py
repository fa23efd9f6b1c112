"""Parts of pages: rows, tiles, lanes and tables, built from facts and put into words."""
