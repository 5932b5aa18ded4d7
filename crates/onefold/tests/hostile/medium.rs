//! The medium below a store, and the process above it: rules 15 and 17 to 20.
