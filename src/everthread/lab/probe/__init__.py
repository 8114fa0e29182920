"""What is still known after compaction: questions with evidence put to a conversation, and planted canaries.

from everthread.lab.probe import probe, read_cases

for case in read_cases("dialogues.json"):
    probed = probe(case, window=16_000, engine="lossless")
    probed.in_context(), probed.within(10)
"""

from everthread.lab.probe.canaries import KINDS as CANARIES
from everthread.lab.probe.chains import Chains, Judged, achains, chains
from everthread.lab.probe.probing import aprobe, probe
from everthread.lab.probe.questions import Case, Evidence, Question, read_cases
from everthread.lab.probe.result import Asked, Probed

__all__ = [
    "CANARIES", "Asked", "Case", "Chains", "Evidence", "Judged", "Probed", "Question", "achains", "aprobe", "chains",
    "probe", "read_cases",
]  # fmt: skip
