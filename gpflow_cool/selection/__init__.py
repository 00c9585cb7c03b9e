"""Which kernel, and which inputs matter: candidates compared by leave-one-out, relevance shrunk."""
