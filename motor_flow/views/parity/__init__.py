"""Do two servers give the same answer to the same requests?

`cases.py` has the requests, `asking.py` sends them, `answers.py` reads what comes, `compare.py` tells it apart,
`accepted.py` knows which differences are none of concern, `outcome.py` and `telling.py` sum up.
"""
