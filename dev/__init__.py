"""Commands that build, check and measure the project; none of them ships."""
