import sys
import time

# In one piece: torchrun's ranks are unbuffered, and the parts of two prints could come apart.
sys.stdout.write(f"{time.time()}\n")
sys.stdout.flush()
