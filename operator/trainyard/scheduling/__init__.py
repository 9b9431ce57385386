"""Where workers run, and what follows from that: pure functions and builders."""
