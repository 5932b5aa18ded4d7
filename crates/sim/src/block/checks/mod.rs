//! What is found out about a store besides what clients read.

mod audit;
pub mod verifier;
