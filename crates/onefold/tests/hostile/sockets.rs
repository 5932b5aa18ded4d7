//! Sockets, and what one client can do to another: rules 10 to 14.
