"""The topics of a store with their own object, such as `store.keys`: one class each."""
