"""Material for `benchmarks.verify`: recorded sentences, paraphrases of them, and wrong facts made from both."""
