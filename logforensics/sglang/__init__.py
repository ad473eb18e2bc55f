"""What is known of SGLang, as data plus small functions: flags by release, version fingerprint, memory model."""
