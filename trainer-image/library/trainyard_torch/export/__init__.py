"""A trained model as files that others can use, each with a record of where it comes from."""
