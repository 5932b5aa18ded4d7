//! What all front ends do with requests that arrived together: park what has to be durable before its
//! answer (`durable`).

pub(crate) mod durable;
