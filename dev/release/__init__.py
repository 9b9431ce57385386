"""`make release`: images, chart, SBOMs and provenance, pushed, signed by a key, and verified as users do. See docs/release.md."""
