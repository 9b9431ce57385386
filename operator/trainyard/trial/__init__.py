"""`helm test`: a small job of two workers, from the operator's own image, that shows whether an installation trains."""
