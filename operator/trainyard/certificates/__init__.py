"""The coordinator's certificate: what the files of a Secret must hold, when it is due, and how it is issued."""
