"""The verbs: produce, fetch, commit, admin. The only place where the parts meet."""
