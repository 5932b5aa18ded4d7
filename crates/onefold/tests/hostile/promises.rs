//! What the documents promise about servers that were killed, trimmed ranges and sentences.
