"""Recipes: jobs made from a model, which measure, shrink, export or explain it."""
