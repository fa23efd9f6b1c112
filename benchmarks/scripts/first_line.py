import time

print(time.time(), flush=True)
