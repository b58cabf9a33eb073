"""Do two servers give the same answer? `answers.py` reads them, `compare.py` tells them apart."""
