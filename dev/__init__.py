"""What builds, runs and measures Trainyard: never part of what ships."""
