"""Profiles a few steps of a running training when somebody asks for it: for unchanged scripts, by a hook of torch's optimizers.

The rank's entry loads these modules by their folder, as it does ``training/tee``.  Standard library only; torch is the
script's own.
"""
