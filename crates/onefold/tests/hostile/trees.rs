//! Directory trees, walked and made again: rules 4 to 8.
