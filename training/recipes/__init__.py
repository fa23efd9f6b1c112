"""Recipes: programs that make a trained model measured, smaller, portable or explained.

``python -m training.recipes RECIPE`` runs one inside a job.  The owner names the functions of their code that
build the model and its evaluation data; every result passes an accuracy gate before it may become a model.
"""
