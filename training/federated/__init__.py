"""Federated rounds: sites train one model on data that stays with them; the server sees only sums of their updates.

``python -m training.federated --sites 5 --model train.py:build_model --data train.py:site_data`` runs the server
and its sites as processes of one job.
"""
