"""The walls around a run: bubblewrap, control groups, seccomp, Landlock."""
