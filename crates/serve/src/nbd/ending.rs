//! How a connection ends.

use std::io;

/// How a connection ended.
#[derive(Debug)]
pub enum Ending {
    /// The client left as the protocol wants it.
    Closed,
    /// The client broke the protocol so that its stream can't be understood any more; the text says
    /// how.
    Protocol(&'static str),
    /// The connection broke, or a time limit passed.
    Broken(io::Error),
}

impl From<io::Error> for Ending {
    fn from(error: io::Error) -> Ending {
        Ending::Broken(error)
    }
}
