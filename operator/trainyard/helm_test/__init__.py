"""`helm test`: a small job of two workers, from the operator's own image, that shows whether an installation trains."""

SIGN_OF_LIFE = "HELM_TEST_SIGN_OF_LIFE"
"""The variable with the path of a file whose time is that of the API server's last answer."""
