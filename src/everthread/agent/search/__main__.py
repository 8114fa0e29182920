"""`python -m everthread.agent.search QUERY`: a query as JSON in, what was found as JSON out."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from everthread.agent.search.query import FileQuery, Search

if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(Search(FileQuery(**json.loads(sys.argv[1]))).run())))
