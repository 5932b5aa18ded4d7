//! The place where a stream goes on.

use std::{fmt, str::FromStr};

use onefold_core::{Error, Kind, Result};

/// The place where a stream goes on that was cut off. It chooses a place, never a snapshot: the
/// sender still names that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Token {
    /// The snapshot.
    pub guid: [u8; 16],
    /// The snapshot that the stream is to be applied to; zero for none.
    pub base: [u8; 16],
    /// All blocks before this one are there.
    pub cursor: u64,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (guid, base) = (u128::from_be_bytes(self.guid), u128::from_be_bytes(self.base));
        write!(f, "{guid:032x}-{base:032x}-{:x}", self.cursor)
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Token> {
        let parsed = || {
            let mut parts = text.split('-');
            let mut number = |digits: usize| {
                let part = parts.next().filter(|part| (1..=digits).contains(&part.len()))?;
                let plain = part.bytes().all(|byte| byte.is_ascii_hexdigit());
                plain.then(|| u128::from_str_radix(part, 16).ok()).flatten()
            };
            let (guid, base, cursor) = (number(32)?, number(32)?, number(16)?);
            let cursor = u64::try_from(cursor).ok()?;
            let whole = parts.next().is_none();
            let (guid, base) = (guid.to_be_bytes(), base.to_be_bytes());
            whole.then_some(Token { guid, base, cursor })
        };
        parsed().ok_or_else(|| {
            let message = "this is no token of `onefold receive --token`";
            Error::new(Kind::InvalidInput, message)
        })
    }
}
