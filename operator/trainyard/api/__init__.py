"""The API of TrainingJob: the one source of the CRD, of its docs and of its validation rules. Pure."""
