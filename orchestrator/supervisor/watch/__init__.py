"""What the supervisor watches while ranks run: hangs, memory, disk, logs."""
